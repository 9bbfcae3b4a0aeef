"""Secure aggregation, simulated in full: SecAgg, SecAgg+ and LightSecAgg.

The server learns the sum of what clients send, and of no single client anything else.
"""
