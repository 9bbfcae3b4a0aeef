"""What a run has recorded, as an object for notebooks: `hpcfed.load(RUN)`."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfed.core.errors import printable
from hpcfed.core.extras import import_extra
from hpcfed.core.tables import duration, size
from hpcfed.results import state
from hpcfed.results.columns import by_round, column, main_metric, metrics, phases, title_metric
from hpcfed.results.summary import facts, share, title
from hpcfed.results.tables import table
from hpcfed.storage.record import Record, load, stamp

if TYPE_CHECKING:
    import pandas


class Run:
    """The results of a run, read-only, as they were when it was made or last refreshed. It may
    still go on.

    Letters: T rounds done, K clients, C classes, R ranks. Arrays are nan where nothing was
    recorded, e.g. of clients that were not evaluated in a round. Of more than 10,000 clients a row
    has only those that took part or were
    evaluated: `column("clients/id")` tells which.

    Raises CheckpointError where there are no readable results.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._seen: object = None
        self.refresh()

    def refresh(self) -> bool:
        """Read what the run has written since; whether there was anything new."""
        seen = stamp(self.path)
        if seen == self._seen:
            return False
        self._record: Record = load(self.path)
        for array in (*self._record.arrays.values(), *self._record.columns.values()):
            array.setflags(write=False)
        self._seen = seen
        return True

    @property
    def header(self) -> dict[str, Any]:
        """All that the run says of itself: job, versions, commit, hardware, ranks, placement,
        faults and so on.
        """
        return self._record.header

    @property
    def job(self) -> dict[str, Any]:
        """The job, as nested dicts: `run.job["data"]["alpha"]`."""
        return self.header["job"]

    @property
    def state(self) -> state.State:
        """Whether the run goes on, how far it is, and what time is left, now."""
        return state.of(self._record, self._record.path.parent)

    @property
    def rounds(self) -> np.ndarray:
        """[T], the numbers of the rounds done, 1..T: the axis to draw the others over."""
        return np.arange(1, self._record.rounds + 1)

    @property
    def accuracy(self) -> np.ndarray:
        """[T, K], test accuracy of each client after the round, 0..1."""
        return column(self._record, "clients/accuracy")

    @property
    def accuracy_before(self) -> np.ndarray:
        """[T, K], test accuracy of the cohort's clients before local training, 0..1."""
        return column(self._record, "clients/accuracy_before")

    @property
    def metrics(self) -> list[str]:
        """The names of what was measured: `run.metric("f1")` has one's values."""
        return metrics(self._record)

    def metric(self, name: str) -> np.ndarray:
        """[T, K], a metric of each client after the round; [T], with `_pooled` at the end of its
        name, over all clients' test examples together. CheckpointError for one that was not
        measured.
        """
        place = "rounds" if name.endswith("_pooled") else "clients"
        return self._record.column(f"{place}/{name}")

    @property
    def loss(self) -> np.ndarray:
        """[T, K], test loss of each client after the round."""
        return column(self._record, "clients/loss")

    @property
    def train_loss(self) -> np.ndarray:
        """[T, K], mean loss of each client's local steps in the round."""
        return column(self._record, "clients/train_loss")

    @property
    def down(self) -> np.ndarray:
        """[T, K], bytes that each client received in the round."""
        return column(self._record, "clients/down")

    @property
    def up(self) -> np.ndarray:
        """[T, K], bytes that each client sent in the round."""
        return column(self._record, "clients/up")

    @property
    def seconds(self) -> np.ndarray:
        """[T], seconds that each round took here."""
        return by_round(self._record, "seconds")

    @property
    def virtual_seconds(self) -> np.ndarray:
        """[T], seconds since the start at the end of each round, as the clients' devices and
        network would take.
        """
        return by_round(self._record, "virtual_seconds")

    @property
    def phases(self) -> dict[str, np.ndarray]:
        """[T, R] by phase: seconds that each rank spent in it; `wait` is for the others."""
        return phases(self._record)

    @property
    def architectures(self) -> list[str]:
        """Of each client; of more than 10,000 clients those that there are."""
        return self.header["architectures"]

    @property
    def classes(self) -> list[str]:
        """The names of the C classes."""
        return self.header.get("classes", [])

    @property
    def label_counts(self) -> np.ndarray | None:
        """[K, C], training examples of each class that each client has; None where that was not
        recorded.
        """
        return self._record.arrays.get("label_counts")

    @property
    def columns(self) -> list[str]:
        """The names of all that was recorded by round."""
        return list(self._record.columns)

    def column(self, name: str) -> np.ndarray:
        """[T, K], [T, R] or [T], any column as it was recorded; CheckpointError for an unknown
        name.
        """
        return self._record.column(name)

    def summary(self) -> dict[str, Any]:
        """The numbers of `hpcfed summary --json`."""
        return facts(self._record)

    def frame(self, name: str = "clients") -> pandas.DataFrame:
        """A pandas frame with a row a round and client ("clients"), a round ("rounds"), a round and
        rank ("ranks"), or a client and class ("labels"). Needs the extra "export"."""
        return import_extra("pandas", "export", "a frame").DataFrame(table(self._record, name))

    def __len__(self) -> int:
        """How many rounds are done."""
        return self._record.rounds

    def __repr__(self) -> str:
        brief = ", ".join(f"{k} {v}" for k, v in self._brief().items())
        return printable(f"<{self.path}: {title(self._record)}; {brief}>")

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._brief().items()
        )
        caption = f"{escape(str(self.path))}<br>{escape(title(self._record))}"
        return f"<table><caption>{caption}</caption>{rows}</table>"

    def _brief(self) -> dict[str, str]:
        """The run in a few words, each under what it is."""
        now, found = self.state, self.summary()
        name, traffic = main_metric(self._record), found["traffic"]
        main = found["metrics"][name]
        known = {
            "state": now.word,
            "rounds": f"{now.rounds} of {now.total}",
            title_metric(name): share(main["mean"])
            + (f" (std {share(main['std'])} over clients)" if main["clients"] > 1 else ""),
            "traffic": f"{size(traffic['down_total'])} down, {size(traffic['up_total'])} up",
            "time": duration(found["time"]["seconds"]),
        }
        return known | ({"left": duration(now.left)} if now.left else {})
