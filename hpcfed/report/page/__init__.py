"""Runs as one web page that needs no network: curves, tables, job, environment, warnings; from
result files alone.
"""
