"""Different models with a common head, or prototypes, or mean outputs by class."""
