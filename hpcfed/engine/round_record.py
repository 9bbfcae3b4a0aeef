"""The record of a round: what clients and ranks did, gathered from all ranks."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed.core.payload import Tally
from hpcfed.federation.replay_log import WHY
from hpcfed.machine.energy import OTHER
from hpcfed.storage.columns import ID, LISTED, PHASES

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation

Row = dict[str, Any]
Flags = Callable[[], dict[str, bool]]  # the requests of a rank, by name
Failures = Mapping[int, dict[int, tuple[str, str]]]  # client -> kind and message, by job's number
TALLIED = ("examples", "epochs", "seconds", "down", "up", "work")  # as fields of a `Tally`
# "metric" is the main metric of the task, whose name it gets in a record
SCORED = (
    "metric_before",
    "loss_before",
    "metric_received",
    "loss_received",
    "metric",
    "loss",
    "one_class",
)
COLUMNS = ("train_loss", *TALLIED, *SCORED)
# up to this many clients, a round's record has all clients; beyond it, only those that took part
# or were evaluated (readers fill in the others up to `columns.LISTED` clients)
FEW = 100


def cells(tally: Tally) -> tuple[float, ...]:
    """Return a tally as a row of the table, the mean loss first."""
    return (tally.mean_loss, *(getattr(tally, name) for name in TALLIED))


NO_SCORES = (float("nan"),) * len(SCORED)
NOTHING = (*cells(Tally()), *NO_SCORES)  # of a client that did nothing and was not evaluated


def peak_bytes() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_device_bytes(device: torch.device) -> int:
    """Return the peak of the GPU memory that torch has reserved for this process, in bytes.

    The memory of graphs is included. The result is 0 on a CPU.
    """
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0


@dataclass(frozen=True)
class Gathered:
    """The work of all clients and ranks in a round.

    ids: the clients that have a row, [n].  columns: the columns COLUMNS, [n] each.
    of_ranks: columns of the table of ranks, by their names in a record.
    flags: for each flag, whether any rank raised it.
    """

    ids: np.ndarray
    columns: dict[str, np.ndarray]
    of_ranks: Row
    flags: dict[str, bool]


class Recorder:
    """Gathers a round's record from all ranks.

    kinds: number of each architecture in the record.
    """

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        self.kinds = {name: i for i, name in enumerate(sorted(set(fed.architectures)))}

    def gather(
        self, named: Iterable[int], scores: Mapping[int, tuple[float, ...]], flags: Flags
    ) -> Gathered:
        """Gather the work of all clients and ranks; collective.

        named: clients that have a row even if they did nothing, the same on all ranks.
        scores: of this rank's clients, as SCORED.
        """
        fed, raised = self.fed, flags()
        ours = {k for k in {**fed.tallies, **scores} if k in fed.clients}
        mine: dict[int, Any] = {
            k: (*cells(fed.tallies.get(k, Tally())), *scores.get(k, NO_SCORES)) for k in ours
        }
        peaks = {"peak_bytes": peak_bytes(), "peak_device_bytes": peak_device_bytes(fed.device)}
        mine[fed.K + fed.comm.rank] = {
            "clock": fed.clock.reset() | peaks,
            "joules": fed.clock.joules(),
            "flags": raised,
            "warnings": fed.warnings.waiting,
        }
        every = fed.comm.gather(mine)
        ranks = [every[fed.K + r] for r in range(fed.comm.size)]
        fed.warnings.print_all([r["warnings"] for r in ranks])
        ids = (
            np.arange(fed.K)
            if fed.K <= FEW
            else np.array(sorted({*named, *(k for k in every if k < fed.K)}), dtype=np.int64)
        )
        rows = [every.get(k, NOTHING) for k in ids.tolist()]
        table = np.array(rows, dtype=float).reshape(len(ids), len(COLUMNS))
        of_ranks = {
            f"ranks/{name}": np.array([r["clock"].get(name, 0.0) for r in ranks])
            for name in (*PHASES, *peaks)
        }
        if fed.job.log.energy:
            of_ranks |= {
                f"ranks/joules_{name}": np.array([r["joules"].get(name, np.nan) for r in ranks])
                for name in (*PHASES, OTHER)
            }
        together = {name: any(r["flags"].get(name, False) for r in ranks) for name in raised}
        return Gathered(ids, dict(zip(COLUMNS, table.T, strict=True)), of_ranks, together)

    def row(self, record: Gathered, cohort: list[int], failures: Failures) -> Row:
        """Return the clients' table of the record.

        failures: of the clients that left the round.
        """
        fed, ids, columns = self.fed, record.ids, record.columns
        for name in ("examples", "down", "up"):
            columns[name] = columns[name].astype(np.int64)
        if not fed.task.has_classes:
            del columns["one_class"]
        member, lost = (np.isin(ids, list(ks)) for ks in (cohort, fed.participants.lost))
        names = (name.replace("metric", fed.task.main) for name in columns)
        row = {f"clients/{name}": v for name, v in zip(names, columns.values(), strict=True)}
        row |= {"clients/cohort": member, "clients/lost": lost}
        if fed.job.run.on_client_fault == "drop":
            row |= {"clients/fault": np.array([fault(failures.get(k, {})) for k in ids.tolist()])}
        if fed.K > FEW:
            row[ID] = ids
        if fed.K > LISTED:
            kinds = [self.kinds[fed.architectures[k]] for k in ids.tolist()]
            row["clients/architecture"] = np.array(kinds, dtype=np.int64)
        return row


def fault(failures: Mapping[int, tuple[str, str]]) -> int:
    """Return why a client failed in a round, as a position in WHY; 0 if it did not fail."""
    return max((WHY.index(kind) for kind, _ in failures.values()), default=0)
