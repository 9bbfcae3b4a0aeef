"""Names that a job may use: what each stands for, in one line, and where its code is, imported when
needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hpcfed.errors import ConfigError, unknown


@dataclass(frozen=True)
class Entry:
    """One name: `target` is "module:attribute"; `cite` holds keys of references.bib, separated by
    commas.
    """

    target: str
    line: str
    cite: str = ""

    def load(self) -> Any:
        module, attribute = self.target.split(":")
        return getattr(import_module(module), attribute)


def find(what: str, name: str, entries: Mapping[str, Entry]) -> Entry:
    """The entry of this name. ConfigError with the nearest valid names if there is none."""
    if name not in entries:
        raise ConfigError(unknown(what, name, entries, f"hpcfed list {what.replace(' ', '')}s"))
    return entries[name]
