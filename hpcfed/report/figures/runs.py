"""Runs as figures see them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from hpcfed.core.errors import CheckpointError
from hpcfed.core.few import count_noun
from hpcfed.core.paths import unique_names
from hpcfed.report.cases import data_names, one_skew
from hpcfed.results.columns import main_metric
from hpcfed.results.summary import data_name
from hpcfed.storage import names as files
from hpcfed.storage import sweep as store
from hpcfed.storage.fields import flat
from hpcfed.storage.record import Record, load


@dataclass(frozen=True, eq=False)
class Drawn:
    """One run. name: that of its folder, with as many folders above it as tell it from the other
    runs.  data: what its data are called among those of the others.  metric: what is drawn of it,
    as columns have it; "": its main one.
    """

    name: str
    folder: Path
    record: Record
    data: str = ""
    metric: str = ""

    @property
    def shown(self) -> str:
        """The metric that is drawn, as columns have it: `f1`, `f1_received`, `f1_pooled`."""
        return self.metric or main_metric(self.record)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Its job, by dotted names."""
        return flat(self.record.header["job"])

    @property
    def dataset(self) -> str:
        """What its data are called."""
        return self.data or data_name(self.record.header["job"]["data"])

    @property
    def method(self) -> str:
        return self.fields["algorithm.name"]

    @property
    def title(self) -> str:
        """Its method and its name, where that does not say it."""
        return self.name if self.name.startswith(self.method) else f"{self.method} ({self.name})"


def setting(run: Drawn, ignore: Sequence[str] = ()) -> str:
    """Its data, how they are shared out, and among how many. ignore: fields of which nothing is
    said.
    """
    fields = one_skew(run.fields)
    halved = 0.0 if "data.halve" in ignore else fields.get("data.halve") or 0.0
    kept = f", {100 * halved:g} % of them halved" if halved else ""
    return (
        f"{run.dataset}, {fields['data.partition']}, "
        f"{count_noun(fields['clients'], 'client')}{kept}"
    )


def load_runs(paths: Sequence[Path]) -> list[Drawn]:
    """The runs at these paths, and those of the sweeps among them that have done a round; each
    once.

    Raises CheckpointError for a run without readable results, or a sweep of which no run has any.
    """
    found: dict[str, Record] = {}
    for record in chain.from_iterable(map(members, paths)):
        found.setdefault(os.path.realpath(record.path), record)
    called = unique_names([files.place_of(record.path) for record in found.values()])
    data = data_names(flat(record.header["job"]) for record in found.values())
    return [
        Drawn(name, record.path.parent, record, data[record.header["job"]["data"]["name"]])
        for name, record in zip(called, found.values(), strict=True)
    ]


def members(path: Path) -> list[Record]:
    """The run at this path, or those of the sweep that have done a round."""
    begun = [
        (load(run), of)
        for run, of in store.runs(path)
        if of is None or files.results_file(run).is_file()
    ]
    done = [record for record, of in begun if of is None or record.rounds]
    if not done:
        raise CheckpointError(
            f"{path}: no run of this sweep has results yet; see `hpcfed status {path}`"
        )
    return done


def short(text: str, most: int = 60) -> str:
    """A text of at most so many letters, cut in its middle."""
    return text if len(text) <= most else f"{text[: most // 2 - 1]} … {text[-(most // 2 - 2) :]}"
