"""Files of a run: results, checkpoints and their digest.

Each rank writes its own part of a checkpoint; everything else is written by rank 0.
"""
