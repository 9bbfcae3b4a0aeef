"""Sweeps: many runs of one job that differ in some fields."""
