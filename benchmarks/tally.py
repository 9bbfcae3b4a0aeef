"""What became of the runs of `chaos.py`, in one table, that `report.py` makes again from numbers
alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

HEAD = (
    "fault",
    "runs",
    "same bits",
    "rounds repeated, median (most)",
    "seconds to recover, median (most)",
    "lost",
    "hung",
    "differing",
    "unexpected status",
)
VERDICTS = ("same", "lost", "hung", "differing")


def rows(outcomes: Sequence[Any], faults: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per kind of fault, of the runs that it met, and all that JSON is to keep of it."""
    struck = {kind: [it for it in outcomes if it.kind == kind and it.counts] for kind in faults}
    return [
        {"kind": kind, "what": faults[kind].what} | counted(runs_struck)
        for kind, runs_struck in struck.items()
        if runs_struck
    ]


def counted(outcomes: Sequence[Any]) -> dict[str, Any]:
    completed = [it for it in outcomes if it.verdict in ("same", "differing")]
    return {"runs": len(outcomes)} | {
        **{verdict: sum(it.verdict == verdict for it in outcomes) for verdict in VERDICTS},
        "unexpected": sum(it.unexpected for it in outcomes),
        "repeated": [it.repeated for it in completed],
        "seconds": [round(it.seconds, 2) for it in completed],
    }


def table(counts: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown, and their sum."""
    return "\n".join(
        [
            line(HEAD),
            "|---" * len(HEAD) + "|",
            *(line(cells(row)) for row in [*counts, total(counts)]),
        ]
    )


def total(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    counts = {name: sum(row[name] for row in found) for name in ("runs", *VERDICTS, "unexpected")}
    values = {
        name: [value for row in found for value in row[name]] for name in ("repeated", "seconds")
    }
    return {"what": "all"} | counts | values


def cells(row: dict[str, Any]) -> list[object]:
    repeated, seconds = (spread(row[name]) for name in ("repeated", "seconds"))
    return [
        row["what"],
        row["runs"],
        row["same"],
        repeated,
        seconds,
        *(row[name] for name in VERDICTS[1:]),
        row["unexpected"],
    ]


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} ({max(values):.3g})" if values else ""


def line(words: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, words))} |"
