"""Simulated clients: their examples, state, devices, network, selection and participation."""
