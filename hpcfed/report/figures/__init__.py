"""`hpcfed plot`: all figures from result files; `registry` lists them."""
