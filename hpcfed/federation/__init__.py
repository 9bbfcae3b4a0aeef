"""The one door between clients and server: exchange, the clients' turns, replay after a death."""
