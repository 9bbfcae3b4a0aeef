"""Reading of runs: the class `Run` (`run`), and its parts.

These are numbers by round (`columns`), the final results (`summary`), the state (`state`), tables
and files of them (`tables`, `export`).
"""
