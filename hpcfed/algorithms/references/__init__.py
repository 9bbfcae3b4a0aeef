"""Reference methods: local training, central training and FedSGD."""
