"""Import of optional packages, each of which belongs to an extra of setup.py."""

from importlib import import_module
from types import ModuleType

from hpcfed.core.errors import ConfigError


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """Import a module of an optional package.

    Raises ConfigError, which says how to install the package, if it is missing or does not load.
    """
    try:
        return import_module(module)
    except ImportError as error:
        why = f"the package {module.partition('.')[0]}, which cannot be imported ({error})"
        raise ConfigError(
            f'{what} needs {why}; install it with pip install "hpcfed[{extra}]"'
        ) from error
