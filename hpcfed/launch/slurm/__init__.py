"""Batch jobs of Slurm: their scripts, and `hpcfed submit`."""
