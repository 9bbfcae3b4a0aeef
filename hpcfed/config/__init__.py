"""The job: its fields with types, ranges, defaults and meanings, and where values come from."""
