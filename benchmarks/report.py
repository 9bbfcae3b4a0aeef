"""One table of all rows, of `make bench` and the longer ones, from the files that the benchmarks
wrote.

`python benchmarks/report.py` composes results/bench/table.md; nothing is measured.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import tally
from paired import RESULTS, Ratio, Row, table

CHAOS = "chaos"  # a table of another kind, not part of `make bench`
CPU = (
    "overhead",
    "faster",
    "augment",
    "startup",
    "sums",
    "placement",
    "ranks",
    "clients",
)  # what `make bench` runs
TITLES = {
    "overhead": "Overhead over the raw loop",
    "faster": "Faster than the raw loop",
    "augment": "Augmentation",
    "startup": "Start",
    "sums": "Exact sums",
    "placement": "Placement",
    "ranks": "Two ranks",
    "clients": "Many clients",
    "asynchronous": "A million asynchronous clients",
    "safety": "What it costs that nothing is lost",
    "checkpoint": "Checkpoints",
    "longrun": "Long runs",
    "page": "A page of 20 runs of 500 rounds and 100 clients",
    "plan": "What `hpcfed plan` predicts",
    "precision": "bfloat16 on a CPU",
    "gpu": "On a GPU",
    "peers": "Beside other simulators",
    "peers-precision": "bfloat16 beside pfl-research",
    "authors": "Beside the authors' code",
    "htfllib": "Beside HtFLlib",
    CHAOS: "Runs that a fault struck at a random moment",
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    text = compose(RESULTS)
    (RESULTS / "table.md").write_text(text)
    print(text)


def compose(folder: Path) -> str:
    """The table of the files in this folder, in Markdown; a benchmark that has none is left out."""
    rows = {
        name: json.loads(path.read_text())
        for name in TITLES
        if (path := folder / f"{name}.json").exists()
    }
    return "\n".join(
        ["# What was measured", ""] + [part(name, content) for name, content in rows.items()]
    )


def part(name: str, content: dict[str, Any]) -> str:
    rows = content["rows"]
    lines = tally.table(rows) if name == CHAOS else table([row(values) for values in rows])
    return f"## {TITLES[name]}\n\n{lines}\n\n{on(content['machine'])}\n"


def row(values: dict[str, Any]) -> Row:
    """A row as it was before it was written; whether it meets its goal is computed anew."""
    fields = {name: v for name, v in values.items() if name != "met"}
    return Row(**fields | {"ratio": Ratio(*values["ratio"])})


def on(machine: dict[str, Any]) -> str:
    """The machine in one line."""
    versions = ", ".join(f"{library} {version}" for library, version in machine["versions"].items())
    return f"{machine['processor']}, {machine['cores']} cores, load {machine['load']}; {versions}."


if __name__ == "__main__":
    main()
