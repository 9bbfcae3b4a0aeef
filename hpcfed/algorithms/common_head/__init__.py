"""Methods for different models that share a head, prototypes, or mean outputs by class."""
