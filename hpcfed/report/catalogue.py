"""`hpcfed list` and `hpcfed show`: names that a job can use, and figures, from the registries."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.text import Text

from hpcfed.config.fields import format_flag_value
from hpcfed.config.methods import ALGORITHMS, KINDS, bare, by_kind, kind_of
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.registry import Entry
from hpcfed.core.shapes import Modality, Shapes
from hpcfed.core.tables import table, terminal
from hpcfed.report.references import bibtex

if TYPE_CHECKING:
    from pydantic import BaseModel

REGISTRIES = {
    "algorithms": "hpcfed.algorithms:ALGORITHMS",
    "datasets": "hpcfed.data:DATASETS",
    "partitions": "hpcfed.data:PARTITIONS",
    "models": "hpcfed.models:MODELS",
    "selections": "hpcfed.config.selection:SELECTIONS",
    "codecs": "hpcfed.config.compression:CODECS",
    "protocols": "hpcfed.config.secure:PROTOCOLS",
    "attacks": "hpcfed.config.attack:ATTACKS",
    "defences": "hpcfed.config.defence:DEFENCES",
    "tasks": "hpcfed.tasks:TASKS",
    "metrics": "hpcfed.tasks:METRICS",
    "figures": "hpcfed.report.figures.registry:FIGURES",
}
IMAGES = {
    "1x28x28": (1, 28, 28),
    "3x32x32": (3, 32, 32),
}  # inputs for which a model's size and cost are given
TEXTS = {"32 tokens": (32,)}  # for models of texts
TABLES = {"13 columns": (13,)}  # for models of rows of numbers
SENSES = {  # for models of several modalities
    "3x128 + 3x128": Shapes([Modality("accelerometer", (3, 128)), Modality("gyroscope", (3, 128))])
}
VOCABULARY = 10_000  # different tokens
CLASSES = 10
INDENT = 4  # characters before a parameter's description


def registry(kind: str) -> Mapping[str, Entry]:
    """Return the entries of one registry, a key of REGISTRIES, without importing their code."""
    module, attribute = REGISTRIES[kind].split(":")
    return getattr(import_module(module), attribute)


def listing(kind: str | None = None, json: bool = False) -> Any:
    """Return all names of one registry or of all, with one line each."""
    rows = {
        k: [fact(n, e) for n, e in registry(k).items()] for k in REGISTRIES if kind in (None, k)
    }
    if json:
        return rows[kind] if kind else rows
    parts: list[RenderableType] = []
    for k, facts in rows.items():
        if k == "algorithms":
            parts += [Text(k, "bold"), *list_algorithms(), Text()]
        else:
            named = [(f"  {fact['name']}", fact["line"]) for fact in facts]
            parts += [table(f"{k},", named), Text()]
    return Group(*parts)


def list_algorithms() -> Iterator[RenderableType]:
    """Yield the algorithms, each category under its title."""
    width = max(map(len, ALGORITHMS)) + INDENT
    for title, entries in by_kind().items():
        named = [(f"{'':{INDENT}}{name}".ljust(width), e.line) for name, e in entries.items()]
        yield Text(f"  {title}")
        grid = table(",", named)
        grid.show_header = False
        yield grid


def fact(name: str, entry: Entry) -> dict[str, Any]:
    """Return one entry as JSON, for an algorithm with its kind."""
    kind = {"group": KINDS[kind_of(entry)]} if ALGORITHMS.get(name) is entry else {}
    return {"name": name, "line": entry.line, "cite": keys(entry), **kind}


def keys(entry: Entry) -> list[str]:
    """Return the keys of references.bib for this entry, which may be none."""
    return [key for key in entry.cite.split(",") if key]


def show(name: str, json: bool = False) -> Any:
    """Return all facts about one name. Raises ConfigError for a name that no registry has."""
    registry_of = {n: kind for kind in reversed(REGISTRIES) for n in registry(kind)}
    spellings = {bare(n): n for n in reversed(registry_of)}
    name = name if name in registry_of else spellings.get(bare(name), name)
    if name not in registry_of:
        raise ConfigError(unknown("name", name, registry_of, "hpcfed list"))
    kind = registry_of[name]
    entry = registry(kind)[name]
    kinds = {
        "algorithms": algorithm,
        "models": model,
        "partitions": data_fields,
        "datasets": data_fields,
    }
    more = kinds.get(kind, lambda name, entry: {})
    facts = {"kind": kind.removesuffix("s"), **fact(name, entry), **more(name, entry)}
    facts["bibtex"] = bibtex(facts["cite"])
    return facts if json else page(facts)


ACCEPTS = {  # models that clients may have, as text
    "one architecture": "the same architecture on all clients",
    "widths": "one architecture, in several widths (models.widths)",
    "depths": "architectures of one family, which differ in their number of equal blocks",
    "a common head": "any architectures; their heads (last layers) have one shape",
    "any models": "any architectures",
}
NEEDS = {  # requirements of methods, as text
    "public": "public examples (data.public)",
    "proxy": "a second model on each client, which is shared (models.proxy)",
    "server": "a model on the server (models.server)",
}


def needs_of(method: Any) -> list[str]:
    """Return what a method needs, as text."""
    classes = ["examples with classes"] if method.needs_classes else []
    return [NEEDS[need] for need in method.needs] + classes


def algorithm(name: str, entry: Entry) -> dict[str, Any]:
    """Return an algorithm's parameters, accepted models, defaults, and the text of its file."""
    cls = entry.load()
    parameters = [parameter(cls, field) for field in cls.model_fields]
    text = import_module(cls.__module__).__doc__
    method = cls()
    needs = needs_of(method)
    return {
        "accepts": method.accepts,
        "needs": needs,
        "local_defaults": method.local_defaults,
        "unused": unused(cls),
        "guide": method.guide._asdict(),
        "parameters": parameters,
        "text": (text or "").strip(),
    }


def unused(cls: Any) -> dict[str, str]:
    """Return the fields of other sections that have no effect with a method, and why."""
    from hpcfed.config.conditions import conditions, usage
    from hpcfed.config.job import Job

    return {n: usage(cls, n, Job) for n in conditions(cls) if n not in cls.model_fields}


GUIDE = {  # what helps to choose a method, as text
    "data": "made for data that are",
    "sent": "what is sent",
    "won": "its paper saw it win",
}


def data_fields(name: str, entry: Entry) -> dict[str, Any]:
    """Return the fields of [data] that apply only to one partition or data set.

    A partition names its fields; the help of others begins with the data set's name and a colon.
    """
    from hpcfed.config.field_docs import field_doc
    from hpcfed.config.sections import Data

    fields = [*getattr(entry, "fields", ())]
    for field in Data.model_fields:
        if field_doc(Data, field).lower().startswith(f"{name}:"):
            fields.append(field)
    return {"parameters": [parameter(Data, field) for field in fields]}


def parameter(part: type[BaseModel], name: str) -> dict[str, Any]:
    """Return one field of a section of a job as JSON."""
    from pydantic_core import to_jsonable_python

    from hpcfed.config.conditions import meaning
    from hpcfed.config.fields import kind_of
    from hpcfed.config.job import Job
    from hpcfed.config.limits import limits

    field = part.model_fields[name]
    return {
        "name": name,
        "type": kind_of(field.annotation),
        "range": limits(field),
        "default": to_jsonable_python(field.get_default(call_default_factory=True)),
        "meaning": meaning(part, name, Job),
    }


def inputs(entry: Any) -> Mapping[str, Any]:
    """Return the input shapes for which a model's size is given, by label."""
    if entry.modal:
        return SENSES
    if entry.text:
        return TEXTS
    return TABLES if entry.table else IMAGES


def model(name: str, entry: Any) -> dict[str, Any]:
    """Return a model's parameters and multiply-adds of one forward pass, by input.

    Only shapes are computed.
    """
    from hpcfed.models import build
    from hpcfed.models.cost import work
    from hpcfed.models.without_weights import without_weights

    sizes = {}
    vocabulary = VOCABULARY if entry.text else 0
    for label, shape in inputs(entry).items():
        with without_weights():
            count = sum(
                p.numel() for p in build(name, shape, CLASSES, vocabulary=vocabulary).parameters()
            )
        multiply_adds = work(name, shape, CLASSES, vocabulary=vocabulary).multiply_adds
        sizes[label] = {"parameters": count, "multiply_adds": multiply_adds}
    return {"classes": CLASSES, "sizes": sizes}


def page(facts: dict[str, Any]) -> RenderableType:
    """Return the facts of one name for people, as wide as the terminal, else 80 columns."""
    parts: list[Any] = [Text(f"{facts['name']} ({facts['kind']}): {facts['line']}\n", "bold")]
    if "text" in facts:
        needs = f"\nalso needs: {', '.join(facts['needs'])}" if facts["needs"] else ""
        defaults = [
            f"local.{n} = {format_flag_value(v)}" for n, v in facts["local_defaults"].items()
        ]
        usual = f"\nits own defaults: {', '.join(defaults)}" if defaults else ""
        parts.append(Text(unwrap(facts["text"]) + "\n"))
        accepts = ACCEPTS.get(facts["accepts"], facts["accepts"])
        parts += [Text(f"{GUIDE[n]}: {words}") for n, words in facts["guide"].items()]
        idle = "".join(f"\n{n}: {text}" for n, text in facts["unused"].items())
        parts.append(Text(f"models: {accepts}{needs}{usual}{idle}\n"))
    if facts.get("parameters"):
        where = "algorithm" if facts["kind"] == "algorithm" else "data"
        for p in facts["parameters"]:
            kind = ", ".join(filter(None, (p["type"], p["range"])))
            parts.append(Text(f"{where}.{p['name']} = {format_flag_value(p['default'])}  ({kind})"))
            parts.append(Padding(Text(p["meaning"]), (0, 0, 0, INDENT)))
        parts.append(Text())
    if "sizes" in facts:
        rows = [
            (s, f"{n['parameters']:,}", f"{n['multiply_adds']:,}")
            for s, n in facts["sizes"].items()
        ]
        parts += [
            table(f"input ({facts['classes']} classes),>parameters,>multiply-adds", rows),
            Text(),
        ]
    content = Group(
        *parts, Text(facts["bibtex"] or "no publication", no_wrap=True, overflow="ignore")
    )
    return content if terminal() else Constrain(content, shutil.get_terminal_size().columns)


def unwrap(text: str) -> str:
    """Return a docstring with one line for each paragraph, for the terminal to wrap."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
