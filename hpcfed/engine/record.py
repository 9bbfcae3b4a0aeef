"""What a round's record holds of clients and ranks, and who gathers it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed.core.payload import Tally
from hpcfed.federation.replay_log import WHY
from hpcfed.storage.columns import PHASES

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation

Row = dict[str, Any]
Flags = Callable[[], dict[str, bool]]  # what a rank wants, by name
Failures = Mapping[int, dict[int, tuple[str, str]]]  # client -> kind and message, by job's number
COLUMNS = (
    "train_loss",
    "examples",
    "epochs",
    "seconds",
    "down",
    "up",
    "work",
    "accuracy_before",
    "loss_before",
    "accuracy_received",
    "loss_received",
    "accuracy",
    "loss",
)
# up to so many clients each has a value in every round's record, beyond only who took part
SMALL = 10_000


def cells(tally: Tally) -> tuple[float, ...]:
    """A tally as a row of the table: the mean loss first."""
    loss, *rest = (getattr(tally, f.name) for f in fields(tally))
    return (loss / tally.examples if tally.examples else float("nan"), *rest)


NOTHING = (
    *cells(Tally()),
    *6 * [float("nan")],
)  # of a client that did nothing and was not evaluated


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_device_bytes(device: torch.device) -> int:
    """Most of a GPU's memory that torch has held for this process so far, graphs' included.

    0 on a CPU.
    """
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0


@dataclass(frozen=True)
class Gathered:
    """What all clients and ranks did in a round.

    ids: the clients that have a row, [n].  columns: [n] each, of COLUMNS.  of_ranks: columns of the
    ranks' table, by their names in a record.  flags: those that any rank raised.
    """

    ids: np.ndarray
    columns: dict[str, np.ndarray]
    of_ranks: Row
    flags: dict[str, bool]


class Recorder:
    """Gathers a round's record from all ranks. kinds: number of each architecture in it."""

    def __init__(self, fed: Federation) -> None:
        self.fed = fed
        self.kinds = {name: i for i, name in enumerate(sorted(set(fed.architectures)))}

    def gather(
        self, cohort: list[int], scores: Mapping[int, tuple[float, ...]], flags: Flags
    ) -> Gathered:
        """What all clients and ranks did; collective.

        scores: of this rank's clients, as the last six of COLUMNS.
        """
        fed, raised = self.fed, flags()
        ours = {k for k in {**fed.tallies, **scores} if k in fed.clients}
        mine: dict[int, Any] = {
            k: (*cells(fed.tallies.get(k, Tally())), *scores.get(k, NOTHING[-6:])) for k in ours
        }
        peaks = {"peak_bytes": peak_bytes(), "peak_device_bytes": peak_device_bytes(fed.device)}
        mine[fed.K + fed.comm.rank] = {
            "clock": fed.clock.reset() | peaks,
            "flags": raised,
            "warnings": fed.warnings.waiting,
        }
        every = fed.comm.gather(mine)
        ranks = [every[fed.K + r] for r in range(fed.comm.size)]
        fed.warnings.print_all([r["warnings"] for r in ranks])
        ids = (
            np.arange(fed.K)
            if fed.K <= SMALL
            else np.array(sorted({*cohort, *(k for k in every if k < fed.K)}))
        )
        table = np.array([every.get(k, NOTHING) for k in ids.tolist()], dtype=float)
        of_ranks = {
            f"ranks/{name}": np.array([r["clock"].get(name, 0.0) for r in ranks])
            for name in (*PHASES, *peaks)
        }
        together = {name: any(r["flags"].get(name, False) for r in ranks) for name in raised}
        return Gathered(ids, dict(zip(COLUMNS, table.T, strict=True)), of_ranks, together)

    def row(self, record: Gathered, cohort: list[int], failures: Failures) -> Row:
        """The clients' table of the record. failures: of the clients that left the round."""
        fed, ids, columns = self.fed, record.ids, record.columns
        for name in ("examples", "down", "up"):
            columns[name] = columns[name].astype(np.int64)
        member, lost = (np.isin(ids, list(ks)) for ks in (cohort, fed.participation.lost))
        row = {f"clients/{name}": column for name, column in columns.items()}
        row |= {"clients/cohort": member, "clients/lost": lost}
        if fed.job.run.on_client_fault == "drop":
            row |= {"clients/fault": np.array([fault(failures.get(k, {})) for k in ids.tolist()])}
        if len(ids) < fed.K:
            kinds = [self.kinds[fed.architectures[k]] for k in ids.tolist()]
            row |= {"clients/id": ids, "clients/architecture": np.array(kinds, dtype=np.int64)}
        return row


def fault(failures: Mapping[int, tuple[str, str]]) -> int:
    """Why a client failed in a round, as the position in WHY; 0: it did not."""
    return max((WHY.index(kind) for kind, _ in failures.values()), default=0)
