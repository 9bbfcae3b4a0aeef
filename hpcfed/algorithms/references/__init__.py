"""References: local, central, FedSGD."""
