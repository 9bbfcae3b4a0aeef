"""Runs as one web page that needs no network: curves, tables, job, environment, warnings.

It needs only result files.
"""
