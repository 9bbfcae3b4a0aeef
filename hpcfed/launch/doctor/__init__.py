"""`hpcfed doctor`: what a run will meet on this machine, and what to change; see `main`."""
