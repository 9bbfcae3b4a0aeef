"""Performance model: resources of a job on a number of nodes, predicted from a short run."""
