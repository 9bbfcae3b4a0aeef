"""What an algorithm may use: signatures and docstrings, read from the source; nothing is
imported.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from text import block, joined, prose, table

ALL = ("*",)  # members of a class: whatever is public and says what it is
SOURCE = Path(__file__).parents[1] / "hpcfed"
INTRO = """
# What an algorithm may use

Signatures and docstrings of what a method may override or call, read from the source. What the
framework alone calls is left out. Which of these hooks decides what is evaluated, and in which
order they are called: [Which model is evaluated](evaluated.md).

A method in rounds overrides hooks of [RoundBased](#roundbased) and [Method](#method), a method in
virtual time those of [EventBased](#eventbased) and [Method](#method). Both call
[Federation](#federation), [Client](#client) and [the training loop](#localsteps).
"""
Function = ast.FunctionDef
PARTS = (  # file, and what of it is shown: a class with these members, with all, or a function
    (
        "algorithms/base.py",
        {
            "Method": (
                "refuses",
                "shared",
                "traffic",
                "init",
                "offer",
                "receive",
                "loss",
                "predictor",
                "columns",
                "finish",
            ),
            "RoundBased": ("cohort", "round", "local", "weight", "aggregate", "server"),
            "score_common": (),
        },
    ),
    ("algorithms/events.py", {"EventBased": ALL}),
    (
        "federation/federation.py",
        {
            "Federation": (
                "initial",
                "shapes",
                "module",
                "start_alike",
                "cohort_size",
                "sample",
                "draw_public",
                "run",
                "stream",
                "mine",
                "work",
                "prepare",
                "pooled",
                "down",
                "mean",
                "gather",
                "each",
                "at_root",
                "from_root",
                "on_root",
            )
        },
    ),
    (
        "clients/client.py",
        {
            "Client": ("memory", "recall", "n", "model", "params", "load", "borrowed"),
            "Shard": ("batch", "pick"),
        },
    ),
    ("clients/client.py", {"Paired": ()}),
    ("core/params.py", {"Params": ALL, "Mean": ("of",)}),
    ("training/local.py", {"LocalSteps": ("descend", "others"), "sgd": (), "gradient": ()}),
    ("training/losses.py", {}),
    ("training/infer.py", {}),
    ("training/server.py", {"fit": ()}),
    ("core/rng.py", {"stream": (), "torch_stream": ()}),
)
ATTRIBUTES = {  # that are not ClassVar: name, meaning
    "Federation": (
        ("job", "the job: `fed.job.local.lr` and so on"),
        ("seed", "the job's seed"),
        ("K", "number of clients"),
        ("classes", "number of classes"),
        ("d", "units of the representation (`models.d`)"),
        ("device", "where this rank's tensors are"),
        ("architectures", "of all clients, by number"),
        ("sizes", "training examples of all clients, by number"),
        ("label_counts", "[K, C]: training examples of each class that each client has"),
        ("public", "`Shard` of examples that no client holds (`data.public`); may be empty"),
        ("t", "the round, from 0"),
        ("clients", "this rank's clients, by number"),
        (
            "tallies",
            "what each client did: a method adds forward passes beside training to "
            "`fed.tallies[client.id].work`, in examples trained on",
        ),
        (
            "participation.profiles, .announced",
            "for virtual time: a client's device and network, and its bytes of a round",
        ),
    ),
    "Client": (
        ("id", "number of the client, from 0"),
        ("architecture", "name of its model's architecture"),
        ("train", "`Shard` of its training examples"),
        ("test", "`Shard` of its test examples; evaluation alone uses it"),
    ),
    "Shard": (
        ("labels", "`[n, ...]`, labels of its examples, on the host"),
        (
            "x",
            "inputs of **all** clients, which ranks share: a client's own are "
            "`client.train.batch(np.arange(client.n))[0]`, as `fed.prepare` takes them",
        ),
    ),
}
ABOUT = {  # in the place of a docstring that speaks of more than is shown
    "Federation": "All clients and the server, as one rank sees them, in the order in which a "
    "method meets them. `down`, `up`, `mean` and `gather` count bytes; `each`, `at_root`, "
    "`from_root` and `on_root` move what is counted so.",
}
DECLARED = re.compile(r"((?:^    # .+\n)+)    (\w+): ClassVar\[.+\] = (.+)$", re.MULTILINE)


def page() -> str:
    """The whole page."""
    return joined(INTRO, *(part(path, wanted) for path, wanted in PARTS))


def part(path: str, wanted: dict[str, tuple[str, ...]]) -> str:
    """What is shown of one file: what is named, in that order, or all that is public."""
    text = (SOURCE / path).read_text()
    tree = ast.parse(text)
    nodes = {node.name: node for node in tree.body if isinstance(node, Function | ast.ClassDef)}
    names = list(wanted) or [name for name in nodes if not name.startswith("_")]
    shown = (
        klass(nodes[n], text, wanted[n])
        if isinstance(nodes[n], ast.ClassDef)
        else function(nodes[n], "###")
        for n in names
    )
    module = "hpcfed." + path.removesuffix(".py").replace("/", ".")
    heading = "" if isinstance(nodes[names[0]], ast.ClassDef) else f"## {module}"
    return joined(heading, prose(ast.get_docstring(tree)) if heading else "", *shown)


def klass(node: ast.ClassDef, text: str, members: tuple[str, ...]) -> str:
    """A class: what it declares, then what can be called or replaced."""
    rows = [
        (f"`{name}`", f"`{default}`", prose(" ".join(comment.replace("    # ", "").split("\n"))))
        for comment, name, default in DECLARED.findall(ast.get_source_segment(text, node))
    ]
    declared = table(("attribute", "default", "meaning"), rows) if rows else ""
    own = [(f"`{name}`", prose(text)) for name, text in ATTRIBUTES.get(node.name, ())]
    known = {child.name: child for child in public(node)}
    every = {child.name: child for child in node.body if isinstance(child, Function)}
    shown = known.values() if members == ALL else (every[name] for name in members)
    return joined(
        f"## {node.name}",
        prose(ABOUT.get(node.name) or ast.get_docstring(node)),
        declared,
        table(("attribute", "meaning"), own) if own else "",
        *map(function, shown),
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
    decorators = [ast.unparse(d) for d in node.decorator_list]
    manager = any(d.endswith("contextmanager") for d in decorators)
    is_property = any(d.endswith("property") for d in decorators)
    result = ast.unparse(node.returns) if node.returns else ""
    if manager:  # what the decorator makes of it
        result = re.sub(r"^Iterator\[(.*)\]$", r"AbstractContextManager[\1]", result)
    returns = f" -> {result}" if result else ""
    arguments = "" if is_property else f"({ast.unparse(node.args)})"
    return joined(
        f"{level} {node.name}",
        block(f"{node.name}{arguments}{returns}", "python"),
        f"A context manager: `with ….{node.name}() as {result[23:-1].lower()}:`."
        if manager
        else "",
        prose(ast.get_docstring(node)),
    )
