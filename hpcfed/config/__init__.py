"""The job: every field with its type, range, default and meaning, and where its value comes
from.
"""
