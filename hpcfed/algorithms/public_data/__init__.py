"""Different models that meet on public data."""
