"""The pages of data sets, partitions and models, from their registries and docstrings."""

from functools import partial
from importlib import import_module
from typing import Any

from text import block, code, folded, joined, prose, sentence, table

from hpcfed.core.registry import Entry as Named
from hpcfed.data import DATASETS, PARTITIONS, schemes
from hpcfed.data.partition import split
from hpcfed.data.sampling import mirror
from hpcfed.models import MODELS, Entry
from hpcfed.report.catalogue import data_fields, keys, model
from hpcfed.report.references import bibtex
from hpcfed.tasks import METRICS, TASKS


def cited(entry: Named) -> str:
    """The publications of one name, closed."""
    return folded("BibTeX", block(bibtex(keys(entry)), "bibtex")) if entry.cite else ""


def said(entry: Named) -> str:
    """What the code of one name says of itself; where a function has no text of its own, what its
    file says.
    """
    target = entry.load()
    text = None if isinstance(target, partial) else target.__doc__
    return prose(text or import_module(entry.target.partition(":")[0]).__doc__)


def names(entries: dict[str, Any], kind: str) -> str:
    """All names with their lines."""
    rows = ((f"[`{name}`](#{kind}-{name})", prose(entry.line)) for name, entry in entries.items())
    return table(("name", "what it is"), rows)


def datasets() -> str:
    """The page of data sets."""
    intro = (
        "# Data sets",
        "`data.name` is one of these, or the path of [a file of your own](../extend/data.md). "
        "They lie below `data.root`, or are downloaded to it (`data.download = false` switches "
        "that off, "
        "for nodes without a network).",
    )
    each = (
        joined(
            f"## {name} {{ #dataset-{name} }}",
            sentence(prose(entry.line)) + ".",
            said(entry),
            cited(entry),
        )
        for name, entry in DATASETS.items()
    )
    return joined(*intro, names(DATASETS, "dataset"), *each)


def tasks() -> str:
    """The page of tasks and metrics."""
    intro = (
        "# Tasks and metrics",
        "The task of a data set says what its labels are, and from it follow the loss, the metrics "
        "and the main one, by which methods are compared. [Metrics](../metrics.md) says how they "
        "are measured, [Data of your own](../extend/data.md#tasks) how data name their task.",
    )
    made = {name: entry.load() for name, entry in TASKS.items()}
    each = (
        joined(
            f"## {name} {{ #task-{name} }}",
            said(entry),
            f"Measured by default: {', '.join(map(code, made[name].usual))}; the main metric is "
            f"{code(made[name].usual[0])}.",
        )
        for name, entry in TASKS.items()
    )
    rows = (
        (
            code(name),
            metric.title,
            ", ".join(n for n, task in made.items() if name in task.metrics),
            prose(metric.formula.__doc__),
            "higher" if metric.high else "lower",
        )
        for name, metric in METRICS.items()
    )
    head = ("metric", "title", "tasks", "definition", "better")
    return joined(*intro, names(TASKS, "task"), *each, "## Metrics", table(head, rows))


def partitions() -> str:
    """The page of partitions."""
    intro = (
        "# Partitions",
        "`data.partition`: which client holds which training examples.",
        prose(split.__doc__),
    )
    tests = joined("## Test sets", prose(mirror.__doc__))
    each = (joined(f"## {name} {{ #partition-{name} }}", partition(name)) for name in PARTITIONS)
    return joined(*intro, names(PARTITIONS, "partition"), *each, tests)


def partition(name: str) -> str:
    """One partition: its functions' texts, and the fields that concern it."""
    function = name.replace("-", "_")
    drawn = {
        "": getattr(schemes, function),
        ' with `sizes = "free"`': getattr(schemes, f"{function}_free", None),
    }
    texts = [
        joined(f"### {name}{how}" if how else "", prose(fn.__doc__))
        for how, fn in drawn.items()
        if fn
    ]
    mine = data_fields(name, PARTITIONS[name])["parameters"]
    rows = (
        (f"[`data.{f['name']}`](job.md#data-{f['name']})", code(f["default"]), prose(f["meaning"]))
        for f in mine
    )
    return joined(
        *texts,
        table(("field", "default", "meaning"), rows) if mine else "",
        cited(PARTITIONS[name]),
    )


def models() -> str:
    """The page of models."""
    intro = (
        "# Models",
        "`models.mix` names the architectures, and `models.d` the width of the representation. "
        "Each model is a body, inputs to representation `[n, d]`, and a linear head, `[n, d]` to "
        "logits `[n, C]`. "
        "Sizes below are with 10 classes and `d = 512`; work is that of one forward pass of one "
        "example. "
        "[A model of your own](../extend/model.md) is one function.",
    )
    each = (
        joined(f"## {name} {{ #model-{name} }}", architecture(name, entry))
        for name, entry in MODELS.items()
    )
    return joined(*intro, names(MODELS, "model"), *each)


def architecture(name: str, entry: Entry) -> str:
    """One model: its text, what it takes, how large it is."""
    takes = "texts" if entry.text else "inputs of any shape"
    takes = "rows of numbers" if entry.table else takes
    takes = "data with several modalities" if entry.modal else takes
    takes = f"images of at least {entry.least} x {entry.least} pixels" if entry.least else takes
    sizes = model(name, entry)["sizes"].items()
    rows = ((s, f"{n['parameters']:,}", f"{n['multiply_adds']:,}") for s, n in sizes)
    return joined(
        f"{sentence(prose(entry.line))}. It takes {takes}.",
        said(entry),
        table(("input", "parameters", "multiply-adds"), rows),
        cited(entry),
    )
