"""The publications behind names in a job: hpcfed/references.bib."""

import re
from collections.abc import Iterable
from importlib.resources import files

from hpcfed.core.version import __version__

ENTRY = re.compile(r"^@\w+\{([^,\s]+),.*?^\}", re.MULTILINE | re.DOTALL)


def references() -> dict[str, str]:
    """Return all BibTeX entries by key; that of hpcfed itself has the installed version."""
    text = (files("hpcfed.report") / "references.bib").read_text(encoding="utf-8")
    return {match[1]: match[0].replace("VERSION", __version__) for match in ENTRY.finditer(text)}


def bibtex(keys: Iterable[str]) -> str:
    """Return the entries of these keys, in this order, each once.

    Raises KeyError for a key without an entry.
    """
    entries = references()
    return "\n\n".join(entries[key] for key in dict.fromkeys(keys))
