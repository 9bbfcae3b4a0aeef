"""Metrics by group of the test examples, as `evaluate.groups` had them computed at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcfed.results.columns import format_metric, metrics
from hpcfed.storage.record import Record

PHASES = {  # endings of the names, and whose models
    "": "clients' own models after local training in the last round",
    "_received": "models that clients would receive after the last round",
    "_final": "own models after the method's last step",
}


@dataclass(frozen=True)
class GroupValue:
    """A metric of the test examples of one group, of all clients together.

    low, high: ends of its interval of 95 %.  The numbers are nan where they are not defined.
    """

    metric: str
    group: str
    examples: int
    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The value with its interval."""
        value, low, high = (
            format_metric(self.metric, number) for number in (self.value, self.low, self.high)
        )
        return f"{value} ({low} to {high})" if self.low == self.low else value


def column_name(record: Record) -> str:
    """Return the column that groups the examples; "" for none."""
    return record.header["job"].get("evaluate", {}).get("groups", "")


def group_values(record: Record, phase: str = "") -> list[GroupValue]:
    """Return each metric of each group; [] if they were not computed. phase: a key of PHASES."""
    names, arrays, of = record.header.get("groups", []), record.arrays, f"groups{phase}/"
    if f"{of}examples" not in arrays:
        return []
    return [
        GroupValue(
            metric,
            group,
            int(arrays[f"{of}examples"][i]),
            *(float(arrays[f"{of}{metric}{end}"][i]) for end in ("", "_low", "_high")),
        )
        for metric in metrics(record)
        for i, group in enumerate(names)
    ]


def facts(record: Record) -> dict[str, Any]:
    """Return the metrics by group as JSON types: by phase, metric and group; None for nan."""
    tables: dict[str, Any] = {}
    for phase in PHASES:
        for one in group_values(record, phase):
            low, high, value = (None if x != x else x for x in (one.low, one.high, one.value))
            by_metric = tables.setdefault(phase.lstrip("_") or "last", {})
            by_group = by_metric.setdefault(one.metric, {})
            by_group[one.group] = {
                "value": value,
                "low": low,
                "high": high,
                "examples": one.examples,
            }
    return tables
