"""How a run survives: checkpoints in the background, buddy copies, recovery, watchdog,
supervise.
"""
