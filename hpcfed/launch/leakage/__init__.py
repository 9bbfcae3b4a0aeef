"""`hpcfed leakage`: what a server can learn of clients' examples from what it receives of them."""
