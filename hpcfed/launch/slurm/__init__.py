"""Batch jobs of Slurm: their text, and `hpcfed submit`."""
