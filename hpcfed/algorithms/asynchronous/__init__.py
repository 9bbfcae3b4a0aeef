"""Asynchronous methods in virtual time."""
