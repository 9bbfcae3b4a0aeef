"""What an algorithm may use: signatures and docstrings, read from the source; nothing is
imported.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from text import block, joined, prose, table

SOURCE = Path(__file__).parents[1] / "hpcfed"
INTRO = """
# What an algorithm may use

Read from the source. A method is a class with [hooks](#method); what it may do is in
[Federation](#federation); what it has in hand are [clients](#client), [Params and Mean](#params),
and [the one training loop](#localsteps).
"""
Function = ast.FunctionDef
PARTS = (  # file, and what of it is shown
    ("algorithms/base.py", ("Method", "RoundBased")),
    ("algorithms/events.py", ("EventBased",)),
    ("federation.py", ("Federation",)),
    ("turns.py", ("Turns",)),
    ("exchange.py", ("Exchange",)),
    ("client.py", ("Client", "Shard", "Paired")),
    ("params.py", ("Params", "Mean")),
    ("training/local.py", ("LocalSteps", "sgd", "gradient")),
    ("training/losses.py", ()),
    ("training/infer.py", ()),
    ("training/server.py", ("fit",)),
    ("rng.py", ("stream", "torch_stream")),
)
DECLARED = re.compile(r"^    (\w+): ClassVar\[(.+?)\] = (.+?)  # (.+)$", re.MULTILINE)


def page() -> str:
    """The whole page."""
    return joined(INTRO, *(part(path, wanted) for path, wanted in PARTS))


def part(path: str, wanted: tuple[str, ...]) -> str:
    """What is shown of one file: what is named, in that order, or all that is public."""
    text = (SOURCE / path).read_text()
    tree = ast.parse(text)
    nodes = {node.name: node for node in tree.body if isinstance(node, Function | ast.ClassDef)}
    names = wanted or [name for name in nodes if not name.startswith("_")]
    shown = (
        klass(nodes[n], text) if isinstance(nodes[n], ast.ClassDef) else function(nodes[n], "###")
        for n in names
    )
    module = "hpcfed." + path.removesuffix(".py").replace("/", ".")
    heading = "" if isinstance(nodes[names[0]], ast.ClassDef) else f"## {module}"
    return joined(heading, prose(ast.get_docstring(tree)) if heading else "", *shown)


def klass(node: ast.ClassDef, text: str) -> str:
    """A class: what it declares, then what can be called or replaced."""
    rows = [
        (f"`{name}`", f"`{default}`", prose(comment))
        for name, _, default, comment in DECLARED.findall(ast.get_source_segment(text, node))
    ]
    declared = table(("attribute", "default", "meaning"), rows) if rows else ""
    return joined(
        f"## {node.name}", prose(ast.get_docstring(node)), declared, *map(function, public(node))
    )


def public(node: ast.ClassDef) -> Iterator[Function]:
    """The functions of a class that others may call, and that say what they are."""
    for child in node.body:
        if (
            isinstance(child, Function)
            and not child.name.startswith("_")
            and ast.get_docstring(child)
        ):
            yield child


def function(node: Function, level: str = "###") -> str:
    """A function's signature and docstring."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    is_property = any(ast.unparse(d).endswith("property") for d in node.decorator_list)
    arguments = "" if is_property else f"({ast.unparse(node.args)})"
    return joined(
        f"{level} {node.name}",
        block(f"{node.name}{arguments}{returns}", "python"),
        prose(ast.get_docstring(node)),
    )
