"""Data of several modalities, or of records: what clients have differs in kind."""
