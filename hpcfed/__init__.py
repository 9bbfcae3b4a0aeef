"""hpcfed: federated learning with different models on different clients, on a cluster."""

__version__ = "0.1.0"
