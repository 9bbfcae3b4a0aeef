"""What drives a run: set-up, rounds, saving, and the loop around them."""
