"""A small common model beside each client's own; a server that trains a model of its own."""
