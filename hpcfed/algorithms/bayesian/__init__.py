"""Distributions over models instead of one model."""
