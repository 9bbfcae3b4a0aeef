"""Methods without a server: clients talk to their neighbours."""
