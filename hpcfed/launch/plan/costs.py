"""Costs of a client, from the result file of a short run (a trial): seconds of an example.

They are measured by architecture.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.config.evaluate import evaluates_all
from hpcfed.core.errors import ConfigError
from hpcfed.results.columns import architectures, column, main_metric
from hpcfed.storage.fields import at
from hpcfed.storage.record import Record, load

# phases of a round; its other seconds are `rest`
PHASES = ("train", "evaluate", "server", "communicate", "wait")
ALIKE = (  # fields on which costs depend
    "algorithm",
    "models.d",
    "data.name",
    "local.batch",
    "local.optimiser",
    "local.augment",
    "compression",
    "privacy",
    "secure",
    "attack",
    "defence",
    "evaluate.before",
    "evaluate.received",
    "evaluate.clients",
    "evaluate.common",
    "evaluate.validation",
    "evaluate.validation_model",
    "evaluate.metrics",
    "run.threads",
    "run.precision",
    "training.engine",
)


@dataclass(frozen=True)
class Costs:
    """Costs of a trial; seconds are those of a rank that computes alone on its cores, and on its
    GPU, if there are several, with the others of the trial.

    train: of one example that goes forward and backward once, by architecture.
    passes: examples that a client passes over in a round, relative to those of [local].
    evaluate: of a test example, relative to train.
    rest: of a client and round, in addition to all that is timed separately.
    server: of a round, on rank 0.
    peak, gpu: peak bytes of a rank's memory, and of its GPU's.
    placed: architectures of the clients of each rank.
    cores: physical cores that the ranks of a node may use together.
    processor: the trial's processor.
    job: the trial's job.
    at_once: ranks that computed on a GPU at a time.
    watts: mean power of a node, of what its counters count; None: not measured.
    trained: mean number of clients of a rank that train in a round, by architecture.
    """

    train: dict[str, float]
    evaluate: float
    rest: float
    server: float
    peak: float
    gpu: float
    placed: list[list[str]]
    cores: int
    processor: str
    job: dict[str, Any]
    watts: float | None = None
    passes: float = 1.0
    at_once: int = 1
    trained: dict[str, float] = field(default_factory=dict)

    def of(self, architecture: str) -> float:
        """Return the seconds of an example. Raises ConfigError if the trial had none."""
        if architecture not in self.train:
            raise ConfigError(
                f"costs: the short run trained {', '.join(self.train)}, but this job has "
                f"{architecture}; make one of this job"
            )
        return self.train[architecture]


def costs(run: Path, stateless: bool) -> Costs:
    """Return the costs from a run's result file.

    stateless: whether clients keep no models, so that a round evaluates them whether or not they
    have trained in it.
    Raises CheckpointError without such a file, ConfigError if it is not usable.
    """
    record = load(run)
    check_usable(record, run)
    skip = min(1, record.rounds - 1)  # in the first round steps are recorded, and memory is new
    names, header = architectures(record), record.header
    seconds, examples = (
        column(record, f"clients/{name}")[skip:] for name in ("seconds", "examples")
    )
    train = rates(names, seconds, examples)
    measured = np.isfinite(column(record, f"clients/{main_metric(record)}")[skip:])
    job = header["job"]
    trained = examples > 0
    beyond_cohort = stateless and draws_evaluated(at(job, "evaluate.clients"), job["clients"])
    evaluated = measured & (beyond_cohort | trained)
    return Costs(
        train=train,
        evaluate=evaluation(record, names, train, skip, evaluated),
        rest=rest(record, skip) * header["ranks"] / float(trained.sum(1).mean()),
        server=float(np.median(column(record, "ranks/server")[skip:].max(1))),
        peak=float(column(record, "ranks/peak_bytes").max()),
        gpu=float(column(record, "ranks/peak_device_bytes").max()),
        placed=[
            [str(names[k]) for k, r in enumerate(header["placement"]) if r == rank]
            for rank in range(header["ranks"])
        ],
        cores=header["hardware"]["cores"],
        at_once=header["hardware"].get("ranks_per_gpu", 1),
        processor=header["hardware"]["device"],
        job=job,
        watts=power(record, skip),
        passes=passes(record, examples),
        trained=clients_that_train(names, examples, header["ranks"]),
    )


def draws_evaluated(wanted: str | int, clients: int) -> bool:
    """Return whether the clients that are evaluated do not depend on the cohort.

    wanted: the job's evaluate.clients.  clients: how many there are.
    """
    return isinstance(wanted, int) or evaluates_all(wanted, clients)


def check_usable(record: Record, run: Path) -> None:
    """Raise ConfigError for a trial whose ranks did not compute alone, or that has no costs."""
    hardware, job, ranks = record.header["hardware"], record.header["job"], record.header["ranks"]
    if not record.rounds or not np.nansum(column(record, "clients/examples")):
        raise ConfigError(f"costs: in {run} no client has been trained; let it make a few rounds")
    if not record.header["placement"]:
        raise ConfigError(
            f"costs: {run} has too many clients to record their ranks; make a trial of up to 10,000"
        )
    threads, cores = ranks * job["run"]["threads"], hardware["nodes"] * hardware["cores"]
    if hardware["device"] == "cpu" and threads > cores:
        raise ConfigError(
            f"costs: the {ranks} ranks of {run} shared {hardware['cores']} cores per node; make a "
            "trial of at most one thread per core"
        )
    if len(set(job["run"].get("speeds", ()))) > 1:
        raise ConfigError(
            f"costs: the ranks of {run} had different speeds; make a trial on equal ranks"
        )


def rates(names: np.ndarray, seconds: np.ndarray, examples: np.ndarray) -> dict[str, float]:
    """Return the seconds of an example by architecture: the median over clients and rounds.

    names: [K], architectures.  seconds, examples: [T, K].
    """
    ratios = defaultdict(list)
    for t, k in zip(*np.nonzero(examples > 0), strict=True):
        ratios[str(names[k])].append(seconds[t, k] / examples[t, k])
    return {name: float(np.median(values)) for name, values in ratios.items()}


def clients_that_train(names: np.ndarray, examples: np.ndarray, ranks: int) -> dict[str, float]:
    """Return the mean number of a rank's clients that train in a round, by architecture.

    Of all rounds the largest counts.
    names: [K], architectures.  examples: [T, K].
    """
    cohorts = [Counter(map(str, names[row > 0])) for row in examples]
    largest = max(cohorts, key=Counter.total)
    return {name: n / ranks for name, n in largest.items()}


def local_examples(sizes: np.ndarray, epochs: int, steps: int | None, batch: int) -> np.ndarray:
    """Return the examples that each client passes over in a round by the fields of [local], [K].

    sizes: [K], training examples.
    """
    return sizes * epochs if steps is None else steps * np.minimum(sizes, batch)


def passes(record: Record, examples: np.ndarray) -> float:
    """Return the examples that clients passed over, relative to those of [local]; 1 if unknown.

    Methods may have epochs of their own, as FedRep has for heads and bodies.
    examples: [T, K].
    """
    if "train_sizes" not in record.arrays:
        return 1.0
    job, sizes = record.header["job"], record.arrays["train_sizes"]
    epochs, steps, batch = (at(job, f"local.{name}") for name in ("epochs", "steps", "batch"))
    usual = local_examples(sizes, epochs, steps, batch) * (examples > 0)
    return float(np.nansum(examples) / usual.sum())


def evaluation(
    record: Record, names: np.ndarray, train: dict[str, float], skip: int, evaluated: np.ndarray
) -> float:
    """Return the seconds of evaluating a test example, relative to training with one.

    All passes of a round are added up.
    evaluated: [T, K], which clients were.
    """
    seconds = column(record, "ranks/evaluate")[skip:].sum(1)
    tests = record.arrays.get("test_sizes", np.ones(len(names)))
    work = evaluated @ (tests * np.array([train.get(str(name), 0.0) for name in names]))  # [T]
    due = (work > 0) & (seconds > 0)
    return float(np.median(seconds[due] / work[due])) if due.any() else 0.0


def rest(record: Record, skip: int) -> float:
    """Return the seconds of a rank's round in no phase, mostly moving weights in and out."""
    phases = sum(column(record, f"ranks/{phase}") for phase in PHASES)
    left = column(record, "rounds/seconds")[:, None] - phases
    return max(0.0, float(np.median(left[skip:])))


def power(record: Record, skip: int) -> float | None:
    """Return the mean power of a node in watts; None if no rank could read a counter."""
    columns = [name for name in record.columns if name.startswith("ranks/joules_")]
    joules = [record.columns[name][skip:] for name in columns]
    if not any(np.isfinite(values).any() for values in joules):
        return None
    seconds = column(record, "rounds/seconds")[skip:].sum() * record.header["hardware"]["nodes"]
    return float(sum(np.nansum(values) for values in joules) / seconds)


def differing_fields(costs: Costs, job: dict[str, Any]) -> list[str]:
    """Return the fields that affect costs and in which the trial's job differs."""
    return [name for name in ALIKE if at(costs.job, name) != at(job, name)]
