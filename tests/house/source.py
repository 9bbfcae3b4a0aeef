"""The house's own source, parsed: what the rules look at."""

import ast
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


@cache
def executed(node: ast.AST) -> list[ast.AST]:
    """All nodes below this one, in their order, but those under `if TYPE_CHECKING:`."""
    nodes, waiting = [], [*ast.iter_child_nodes(node)][::-1]
    while waiting:
        child = waiting.pop()
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            nodes.append(child)
            waiting += [*ast.iter_child_nodes(child)][::-1]
    return nodes


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


@cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """Each call of a file with the dotted name of what is called."""
    return [
        (dotted(node.func), node) for node in executed(tree(path)) if isinstance(node, ast.Call)
    ]


def dotted(node: ast.expr) -> str:
    """The text of an expression, which for a name and its parts is known at once."""
    names, inner = [], node
    while isinstance(inner, ast.Attribute):
        names.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        return ".".join([inner.id, *reversed(names)])
    return ast.unparse(node)
