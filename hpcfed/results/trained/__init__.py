"""Runs that have trained models: who has which, as files, and what they answer.

No MPI, and nothing is trained.
"""
