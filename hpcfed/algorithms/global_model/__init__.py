"""Methods that train one global model of one architecture."""
