"""Methods with a small common model beside each client's own, or with a model on the server."""
