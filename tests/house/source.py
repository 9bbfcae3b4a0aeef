"""The house's own source, parsed: what the rules look at."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hpcfed import PLACES
from hpcfed.algorithms import ALGORITHMS as METHODS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = sorted((ROOT / "hpcfed").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
DOCS = sorted((ROOT / "docs").rglob("*.py"))
ALGORITHMS = [  # the file of each method, in the folder of its kind
    ROOT / (entry.target.partition(":")[0].replace(".", "/") + ".py") for entry in METHODS.values()
]


def name(path: Path) -> str:
    """A file as the messages of failing rules name it."""
    return str(path.relative_to(ROOT))


def module(path: Path) -> str:
    """hpcfed/comm/mpi.py as hpcfed.comm.mpi."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in PACKAGE}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), name(path))


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one but those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield child
            yield from executed(child)


def imports(path: Path, typing: bool = False) -> set[str]:
    """Full names of all modules that a file imports when run, at its top or later.

    typing: those imported for type checkers alone too.
    """
    modules = set()
    for node in ast.walk(tree(path)) if typing else executed(tree(path)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "hpcfed":
            modules |= {module_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= (full & MODULES.keys()) | ({node.module} if full - MODULES.keys() else set())
    return modules


def module_of(name: str) -> str:
    """The module that `from hpcfed import NAME` imports."""
    place = PLACES.get(name, "hpcfed")
    return f"{place}.{name}" if f"{place}.{name}" in MODULES else place


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Each call of a file with the dotted name of what is called."""
    return (
        (ast.unparse(node.func), node)
        for node in executed(tree(path))
        if isinstance(node, ast.Call)
    )
