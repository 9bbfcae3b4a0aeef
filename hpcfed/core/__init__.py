"""Shared foundations: parameters and their means, random streams, errors, payloads and text."""
