"""Packages that only some users need, each in an extra of setup.py: imported when asked for."""

from importlib import import_module
from types import ModuleType

from hpcfed.core.errors import ConfigError


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """A module of such a package.

    ConfigError that says how to install it where it is missing or does not load.
    """
    try:
        return import_module(module)
    except ImportError as error:
        why = f"the package {module.partition('.')[0]}, which cannot be imported ({error})"
        raise ConfigError(
            f'{what} needs {why}; install it with pip install "hpcfed[{extra}]"'
        ) from error
