"""Federation: exchange between clients and server, turns of clients, and replay of a round."""
