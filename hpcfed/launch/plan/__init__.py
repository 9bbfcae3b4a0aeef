"""A model of the cluster: what a job would take on so many nodes, predicted from a short run."""
