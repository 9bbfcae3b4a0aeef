"""Methods without a server: clients exchange models with their neighbours."""
