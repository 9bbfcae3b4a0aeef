"""Costs of a client, from the result file of a short run (a trial): seconds of an example.

They are measured by architecture.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.results.columns import architectures, column
from hpcfed.storage.fields import at
from hpcfed.storage.record import Record, load

APART = (
    "train",
    "evaluate",
    "server",
    "communicate",
    "wait",
)  # phases of a round; its other seconds are `rest`
NORMAL = 1.4826  # standard deviation of a normal variable over its median deviation
ALIKE = (
    "algorithm",
    "models.d",
    "data.name",
    "local.batch",
    "local.optimiser",
    "local.augment",
    "evaluate.before",
    "evaluate.received",
    "run.threads",
    "run.precision",
    "training.engine",
)


@dataclass(frozen=True)
class Costs:
    """Costs of a trial; seconds are those of a rank that computes alone on its cores or its GPU.

    train: of one example that goes forward and backward once, by architecture.
    evaluate: of a test example, relative to train.
    rest: of a client and round, in addition to all that is timed separately.
    server: of a round, on rank 0.
    peak, gpu: peak bytes of a rank's memory, and of its GPU's.
    held: architectures of the clients of each rank.
    cores: of a node.
    processor: the trial's processor.
    job: the trial's job.
    spread: `relative_deviation` of a client's seconds.
    """

    train: dict[str, float]
    evaluate: float
    rest: float
    server: float
    peak: float
    gpu: float
    held: list[list[str]]
    cores: int
    processor: str
    job: dict[str, Any]
    spread: float = 0.0

    def of(self, kind: str) -> float:
        """Return the seconds of an example of this architecture.

        Raises ConfigError if the trial had none.
        """
        if kind not in self.train:
            raise ConfigError(
                f"costs: the short run trained {', '.join(self.train)}, but this job has {kind}; "
                "make one of this job"
            )
        return self.train[kind]


def costs(run: Path, everybody: bool) -> Costs:
    """Return the costs from a run's result file.

    everybody: whether a round also evaluates clients that did not train in it.
    Raises CheckpointError without such a file, ConfigError if it is not usable.
    """
    record = load(run)
    usable(record, run)
    first = min(1, record.rounds - 1)  # in the first round steps are recorded, and memory is new
    kinds, header, placement = architectures(record), record.header, record.header["placement"]
    seconds, examples = (
        column(record, f"clients/{name}")[first:] for name in ("seconds", "examples")
    )
    train = rates(kinds, seconds, examples)
    seen = np.isfinite(column(record, "clients/accuracy")[first:]) & (everybody | (examples > 0))
    return Costs(
        train=train,
        evaluate=evaluation(record, kinds, train, first, seen),
        rest=rest(record, first) * header["ranks"] / float((examples > 0).sum(1).mean()),
        server=float(np.median(column(record, "ranks/server")[first:].max(1))),
        peak=float(column(record, "ranks/peak_bytes").max()),
        gpu=float(column(record, "ranks/peak_device_bytes").max()),
        held=[
            [str(kinds[k]) for k, r in enumerate(placement) if r == rank]
            for rank in range(header["ranks"])
        ],
        cores=header["hardware"]["cores"],
        processor=header["hardware"]["device"],
        job=header["job"],
        spread=relative_deviation(kinds, seconds, examples, train),
    )


def usable(record: Record, run: Path) -> None:
    """Raise ConfigError for a trial whose ranks did not compute alone, or that has no costs."""
    hardware, job, ranks = record.header["hardware"], record.header["job"], record.header["ranks"]
    if not record.rounds or not np.nansum(column(record, "clients/examples")):
        raise ConfigError(f"costs: in {run} no client has been trained; let it make a few rounds")
    if not record.header["placement"]:
        raise ConfigError(
            f"costs: {run} has too many clients to tell their ranks; make a trial of up to 10,000"
        )
    if (
        hardware["device"] == "cpu"
        and ranks * job["run"]["threads"] > hardware["nodes"] * hardware["cores"]
    ):
        raise ConfigError(
            f"costs: the {ranks} ranks of {run} shared {hardware['cores']} cores a node; make a "
            f"trial of "
            "at most one thread a core"
        )
    if len(set(job["run"].get("speeds", ()))) > 1:
        raise ConfigError(
            f"costs: the ranks of {run} had different speeds; make a trial on ranks of one kind"
        )


def rates(kinds: np.ndarray, seconds: np.ndarray, examples: np.ndarray) -> dict[str, float]:
    """Return the seconds of an example by architecture: the median over clients and rounds.

    seconds, examples: [T, K].
    """
    found = defaultdict(list)
    for t, k in zip(*np.nonzero(examples > 0), strict=True):
        found[str(kinds[k])].append(seconds[t, k] / examples[t, k])
    return {kind: float(np.median(values)) for kind, values in found.items()}


def relative_deviation(
    kinds: np.ndarray, seconds: np.ndarray, examples: np.ndarray, train: dict[str, float]
) -> float:
    """Return the standard deviation of a client's seconds, relative to their mean.

    Variations of a whole round do not count. It is estimated from the median deviation of clients,
    so that outliers of the machine do not matter.
    """
    usual, found = examples * np.array([train.get(str(kind), 0.0) for kind in kinds]), []
    for took, normal in zip(seconds, usual, strict=True):
        pace = took[normal > 0] / normal[normal > 0]
        found.extend(abs(pace / np.median(pace) - 1) if len(pace) else pace)
    return NORMAL * float(np.median(found)) if found else 0.0


def evaluation(
    record: Record, kinds: np.ndarray, train: dict[str, float], first: int, seen: np.ndarray
) -> float:
    """Return the seconds of evaluating a test example, relative to training with one.

    All passes of a round are added up.
    seen: [T, K], which clients were evaluated.
    """
    spent, tests = (
        column(record, "ranks/evaluate")[first:].sum(1),
        record.arrays.get("test_sizes", np.ones(len(kinds))),
    )
    work = seen @ (tests * np.array([train.get(str(kind), 0.0) for kind in kinds]))  # [T]
    due = (work > 0) & (spent > 0)
    return float(np.median(spent[due] / work[due])) if due.any() else 0.0


def rest(record: Record, first: int) -> float:
    """Return the seconds of a rank's round in no phase, mostly moving weights in and out."""
    apart = sum(
        column(record, f"ranks/{phase}") for phase in APART
    )  # a checkpoint comes between rounds
    left = column(record, "rounds/seconds")[:, None] - apart
    return max(0.0, float(np.median(left[first:])))


def differing_fields(costs: Costs, job: dict[str, Any]) -> list[str]:
    """Return the fields that affect costs and in which the trial's job differs."""
    return [name for name in ALIKE if at(costs.job, name) != at(job, name)]
