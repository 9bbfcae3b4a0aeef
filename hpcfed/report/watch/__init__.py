"""`hpcfed watch`: running runs, in the terminal (`terminal`) or on the page of report (`web`).

It needs only the runs' files.
"""
