"""The publications behind what a job can name: hpcfed/references.bib."""

import re
from collections.abc import Iterable
from importlib.resources import files

from hpcfed.core.version import __version__

ENTRY = re.compile(r"^@\w+\{([^,\s]+),.*?^\}", re.MULTILINE | re.DOTALL)


def references() -> dict[str, str]:
    """All BibTeX entries by key; the one of hpcfed itself has the version that is installed."""
    text = (files("hpcfed.report") / "references.bib").read_text(encoding="utf-8")
    return {found[1]: found[0].replace("VERSION", __version__) for found in ENTRY.finditer(text)}


def bibtex(keys: Iterable[str]) -> str:
    """The entries of these keys, in this order, each once. KeyError for a key that no entry has."""
    known = references()
    return "\n\n".join(known[key] for key in dict.fromkeys(keys))
