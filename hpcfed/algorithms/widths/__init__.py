"""Sub-models of several widths of one global model."""
