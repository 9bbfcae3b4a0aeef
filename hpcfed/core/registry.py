"""Registries of the names that a job may use.

Each entry has a line of description and the location of its code, which is imported when needed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from hpcfed.core.architecture import Architecture
from hpcfed.core.errors import ConfigError, unknown

# packages whose models jobs name, as "torchvision:resnet50"
LIBRARIES = ("torchvision", "timm", "hf", "clip")


@dataclass(frozen=True)
class Entry:
    """One registered name.

    target: "module:attribute".
    line: description.
    cite: keys of references.bib, separated by commas.
    """

    target: str
    line: str
    cite: str = ""

    def load(self) -> Any:
        module, attribute = self.target.split(":")
        return getattr(import_module(module), attribute)


E = TypeVar("E", bound=Entry)


def find(what: str, name: str, entries: Mapping[str, E]) -> E:
    """Return the entry of this name.

    Raises ConfigError, with the nearest valid names, if there is none.
    """
    if name not in entries:
        raise ConfigError(unknown(what, name, entries, f"hpcfed list {what.replace(' ', '')}s"))
    return entries[name]


def refuse_import(
    names: Iterable[str | None], importable: Collection[str], where: str, advice: str
) -> None:
    """Raise ConfigError for a "module:attribute" that only a file names.

    Importing a module runs its code, so the user must name it too.
    names: names from the file.
    importable: names that the user gives.
    where: names the file.
    advice: says how the user gives a name.
    """
    for base in (base for name in names for base in outside(name) if base not in importable):
        raise ConfigError(
            f"{where} names {base}: its module would be imported and its code run; "
            f"hpcfed does that only if you name it yourself: {advice} {base}"
        )


def outside(name: object) -> Iterator[str]:
    """Yield each "module:attribute" in the name of a method or model that is outside hpcfed."""
    if isinstance(name, str) and ":" in name:
        for part in Architecture.parse(name).parts:
            if ":" in part.base and part.base.partition(":")[0] not in LIBRARIES:
                yield part.base
