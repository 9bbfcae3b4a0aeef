"""Methods whose clients have different models and exchange knowledge on public data."""
