"""Methods whose clients train sub-models of one global model, in several widths or depths."""
