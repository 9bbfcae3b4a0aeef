"""The local training loop, and the formulas of all losses."""
