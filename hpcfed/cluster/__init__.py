"""Ranks and the machine: devices, placement of clients on ranks, time by phase."""
