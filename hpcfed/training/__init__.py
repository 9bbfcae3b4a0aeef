"""The one local training loop, and the formulas of all losses."""
