"""Methods that learn distributions over models instead of one model."""
