"""What a run leaves on disk: results, checkpoints and a digest of both. Only rank 0 writes."""
