"""Methods that divide the clients into clusters, each with its own model."""
