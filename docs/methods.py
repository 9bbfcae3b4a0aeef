"""The pages of the methods: each from its registry's line, its docstrings, its fields, its job and
its code.
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from fields import default, kind
from formulas import mathml
from text import anchored, block, folded, joined, prose, sentence, table
from traffic import traffic

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms.base import Method
from hpcfed.algorithms.decentralised.peers import Peers
from hpcfed.algorithms.events import EventBased
from hpcfed.config.fields import format_flag_value
from hpcfed.config.methods import by_kind
from hpcfed.report.catalogue import (
    ACCEPTS,
    keys,
    needs_of,
    parameter,
    unused,
)
from hpcfed.report.references import bibtex

ROOT = Path(__file__).parents[1]
MODELS = {  # what a method accepts, as the table of all methods has it
    "one architecture": "the same on all clients",
    "widths": "one architecture, in several widths",
    "depths": "one family, in several depths",
    "a common head": "different ones, with a common head",
    "any models": "different ones",
}
INDEX = """
# All methods

`algorithm.name` is one of these, or [one of your own](../extend/algorithm.md). *Models*: which
architectures clients may have, with a method's defaults. A job that a method cannot run is refused
with the reason and with methods that can.
"""
EQUATIONS = re.compile(
    r"^Objective: (?P<objective>.+?)\nServer: (?P<server>.+?)\nRound:\n(?P<round>.+?)(?:\n\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
SYMBOLS = """
w is the server's model, w_k that of client k after its training. F_k is the mean loss over client
k's examples, CE the cross-entropy of a batch, KL(p || q) the divergence of q from a teacher p.
p_k is a client's weight in the mean; these weights add up to 1. S is the cohort, K the number of
clients, z a representation; sums and means over k are over the cohort, unless the round says
otherwise. Other letters are fields of the method, or the text below says what they are.
"""
HEAD = ("method", "what it does", "models", "also needs", "time")


def title(name: str) -> str:
    """The method's name as its paper has it."""
    return lines(name)[0].partition(":")[0].replace(" (also HypCluster)", "")


def lines(name: str) -> list[str]:
    """The docstring of the method's file: what it is, in one line, and the lines after that."""
    text = import_module(ALGORITHMS[name].load().__module__).__doc__.strip()
    first, _, rest = text.partition("\n\n")
    return [" ".join(first.split()), *rest.splitlines()]


def index() -> str:
    """The page of all methods."""
    parts = (
        (f"## {title[0].upper()}{title[1:]}", table(HEAD, map(row, entries)))
        for title, entries in by_kind().items()
    )
    return joined(INDEX, *(text for part in parts for text in part))


def row(name: str) -> tuple[str, ...]:
    """One method in the table of its kind."""
    entry, own = ALGORITHMS[name], ALGORITHMS[name].load()()
    needs = ", ".join(needs_of(own))
    return f"[{title(name)}]({name}.md)", prose(entry.line), MODELS[own.accepts], needs, time(own)


def time(own: Method) -> str:
    """What a round is."""
    asynchronous = isinstance(own, EventBased)
    if isinstance(own, Peers):
        return "no server, virtual time" if asynchronous else "no server, rounds"
    return "virtual time" if asynchronous else "rounds"


def page(name: str) -> str:
    """The page of one method."""
    cls, entry = ALGORITHMS[name].load(), ALGORITHMS[name]
    first, rest = lines(name)[0], "\n".join(lines(name)[1:])
    equations = EQUATIONS.search(rest)
    source, heading, deviations = EQUATIONS.sub("", rest).partition("Deviations:")
    code_ = Path(inspect.getfile(cls)).read_text()
    return joined(
        f"# {title(name)}",
        sentence(prose(first.partition(": ")[2] or first)),
        f'`algorithm.name = "{name}"`',
        method(equations, issubclass(cls, Peers)) if equations else "",
        joined("## Source", prose(source)) if source.strip() else "",
        joined("## Deviations", sentence(prose(deviations.strip()))) if heading else "",
        joined("## What it runs with", conditions(cls())),
        joined("## Parameters", prose(cls.__doc__), fields(cls)),
        joined("## Traffic", traffic(name)),
        *job(name),
        folded(
            f"The whole method: {Path(inspect.getfile(cls)).relative_to(ROOT)}",
            block(code_, "python"),
        ),
        folded("BibTeX", block(bibtex(keys(entry)), "bibtex")) if entry.cite else "",
    )


def method(equations: re.Match[str], peers: bool) -> str:
    """Its objective and its server's step as formulas, and its round; peers: without a server."""
    server = " ".join(equations["server"].split())
    return joined(
        "## The method",
        "Objective:",
        mathml(equations["objective"]),
        "Step of each client:" if peers else "The server's step:",
        "It does nothing." if server == "none" else mathml(server),
        "A round:",
        prose(equations["round"]),
        folded("Symbols", prose(SYMBOLS)),
    )


def conditions(own: Method) -> str:
    """What the method accepts and needs, with its defaults."""
    needs = needs_of(own) or ["nothing else"]
    facts = {
        "Models": ACCEPTS.get(own.accepts, own.accepts),
        "Needs": ", ".join(needs),
        "Time": time(own),
        "Stragglers": "partial work counts" if own.keeps_stragglers else "left out of the round",
        "Augmented views of a batch": str(own.views),
    }
    if own.local_defaults:
        usual = (
            f"`local.{name} = {format_flag_value(v)}`" for name, v in own.local_defaults.items()
        )
        facts["Defaults of its own"] = ", ".join(usual)
    facts |= {f"`{name}`": prose(text) for name, text in unused(type(own)).items()}
    return "\n".join(f"- {what}: {value}" for what, value in facts.items())


def fields(cls: type[Method]) -> str:
    """The method's fields in a job."""
    rows = (
        (anchored(f["name"], f["name"]), kind(f), default(f), prose(f["meaning"]))
        for f in (parameter(cls, name) for name in cls.model_fields)
    )
    return table(("`algorithm.`", "type, limits", "default", "meaning"), rows)


def job(name: str) -> Iterator[str]:
    """The job of the method's paper."""
    path = f"jobs/methods/{name}.toml"
    yield "## Its job"
    yield (
        f"[{path}](../{path}): the main experiment of its paper, as far as its settings are known."
    )
    yield block((ROOT / path).read_text(), "toml")
