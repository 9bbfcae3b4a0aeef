"""Different models with a common head, or prototypes."""
