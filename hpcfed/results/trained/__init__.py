"""Trained models of runs: which client has which, as files, and their predictions.

No MPI, and nothing is trained.
"""
