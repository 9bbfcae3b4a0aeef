"""`hpcfed doctor`: checks how runs will work on this machine, and what to change; see `main`."""
