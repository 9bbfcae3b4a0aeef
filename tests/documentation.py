"""Modules of docs/ for tests. They import one another by their bare names."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import pytest

from tests.mpirun import ROOT

DOCS = ROOT / "docs"


@contextmanager
def documentation_module(name: str) -> Iterator[ModuleType]:
    """Import a module of docs/, some of which have the names of other tests' modules."""
    modules = {path.stem for path in DOCS.glob("*.py")}
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.delitem(sys.modules, module, raising=False)
        patch.syspath_prepend(str(DOCS))
        try:
            yield import_module(name)
        finally:
            for module in modules:
                sys.modules.pop(module, None)
