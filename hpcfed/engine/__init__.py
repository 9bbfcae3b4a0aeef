"""The course of a run: set-up, rounds, checkpoints, and the loop around them."""
