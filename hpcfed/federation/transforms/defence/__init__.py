"""Defences against attackers among the clients: each rule is one file."""
