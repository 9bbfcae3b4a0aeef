"""The jobs and environments of runs, with fields that differ between runs separated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcfed.report.cases import ASIDE
from hpcfed.results.run import Run, format_value
from hpcfed.storage.fields import covers, flat

Facts = dict[str, str]  # by dotted name, as text
WIDE = 8  # columns of a table that fit on a page


@dataclass(frozen=True)
class Parted:
    """Facts of runs.

    differs: names of the facts that differ between runs.
    values: for each run the values of those.
    same: facts that all runs have in common.
    """

    runs: list[str]
    differs: list[str]
    values: list[list[str]]
    same: Facts

    @property
    def tables(self) -> list[list[tuple[str, ...]]]:
        """The facts that differ, as tables that fit on paper.

        Runs are across if that is narrower. The first line of a table is its head, and so is the
        first cell of each line.
        """
        if len(self.differs) > len(self.runs):
            columns: Iterable[tuple[str, Sequence[str]]]
            heads, columns = ["field", *self.differs], zip(self.runs, self.values, strict=True)
        else:
            heads, columns = (
                ["run", *self.runs],
                zip(self.differs, zip(*self.values, strict=True), strict=True),
            )
        rows = [[head, *values] for head, values in columns]
        return [
            list(zip(heads, *rows[i : i + WIDE], strict=True)) for i in range(0, len(rows), WIDE)
        ]


def split_facts(runs: Sequence[Run], by_run: Sequence[Facts]) -> Parted:
    """Return the facts of each of these runs, split into different and equal ones."""
    names = list(dict.fromkeys(name for facts in by_run for name in facts))
    differs = [name for name in names if len({facts.get(name, "") for facts in by_run}) > 1]
    values = [[facts.get(name, "") for name in differs] for facts in by_run]
    same = {name: by_run[0].get(name, "") for name in names if name not in differs}
    return Parted([run.name for run in runs], differs, values, same)


def jobs(runs: Sequence[Run]) -> Parted:
    """Return the fields of all jobs, the method first.

    Fields on which no number depends (the folder of a run) come last.
    """
    fields = [flat(run.job) for run in runs]
    return split_facts(
        runs,
        [
            {name: format_value(values[name]) for name in sorted(values, key=place)}
            for values in fields
        ],
    )


def place(name: str) -> tuple[bool, bool]:
    """Return the sort key of a field."""
    return covers(ASIDE, name), name != "algorithm.name"


def environments(runs: Sequence[Run]) -> Parted:
    """Return versions, commit, hardware and ranks of all runs, as each was last started."""
    return split_facts(runs, [environment(run.record.header) for run in runs])


def environment(header: dict[str, Any]) -> Facts:
    values: dict[str, Any] = {
        name: header[name] for name in ("commit", "versions", "hardware", "ranks") if name in header
    }
    return {name: format_value(value) for name, value in flat(values).items()}
