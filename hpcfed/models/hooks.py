"""Hooks of modules that a local step may be recorded with."""


class PureHook:
    """A hook whose effect follows from its fields alone.

    Its classes are frozen dataclasses; a field is a plain value or a module of the same model. Any
    other hook may do anything, so that steps of a model that has one are not recorded.
    """
