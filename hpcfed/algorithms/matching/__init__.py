"""One global model, of clients' models whose units are matched first."""
