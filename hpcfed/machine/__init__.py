"""The real machine: devices and their memory, placement of clients on ranks, clocks, heartbeat."""
