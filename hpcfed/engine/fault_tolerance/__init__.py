"""Fault tolerance: background checkpoints, buddy copies, recovery, watchdog, supervision."""
