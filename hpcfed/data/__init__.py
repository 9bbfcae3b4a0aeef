"""Examples: where they come from, which client holds which, and how they are varied in training."""
