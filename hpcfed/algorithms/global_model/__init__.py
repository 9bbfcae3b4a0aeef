"""One global model, one architecture."""
