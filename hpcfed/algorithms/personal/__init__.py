"""Personal models of one architecture."""
