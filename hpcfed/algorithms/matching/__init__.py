"""Methods that match the units of the clients' models before they average them."""
