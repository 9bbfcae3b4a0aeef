"""Clusters of clients, each with its centre."""
