"""Methods that use synthetic examples instead of public data."""
