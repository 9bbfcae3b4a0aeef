"""`hpcfed watch`: runs as they go on, from their files alone, in the terminal (`terminal`) or on
the page of `hpcfed report` (`web`).
"""
