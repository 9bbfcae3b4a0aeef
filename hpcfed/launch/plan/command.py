"""`hpcfed plan JOB.toml [fields] --costs RUN --nodes 1,2,4,...,1024`: resources of a run.

It also says how many nodes are worth using.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from hpcfed.core.errors import ConfigError
from hpcfed.core.tables import duration, size, table
from hpcfed.launch.plan.network import disk as disks
from hpcfed.launch.plan.network import network
from hpcfed.launch.plan.predict import Cluster, Prediction, predict
from hpcfed.machine.memory_budget import weights

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.federation.world import World
    from hpcfed.launch.plan.costs import Costs
    from hpcfed.launch.plan.demand import Demand

# share of the smallest cluster's efficiency, below which additional nodes mostly wait
PAYS = 0.5
MOST = 100_000  # ranks
HEADS = (
    ">nodes,>ranks,>round,>train,>evaluate,>wait,>communicate,>other,"
    ">efficiency,>run,>node-hours,>memory a rank"
)


def plan(
    words: Sequence[str],
    costs: Path | None,
    nodes: str,
    gpus_per_node: int,
    cores_per_node: int | None,
    ranks_per_node: int | None,
    network: str,
    disk: str,
    json: bool = False,
) -> dict[str, Any] | Group:
    """Return the predictions for people, or with `json` as numbers.

    Raises ConfigError for a job that cannot be planned, CheckpointError if RUN has no results.
    """
    from hpcfed.config.load import load
    from hpcfed.engine.folder import read_job

    counts = numbers(nodes)
    job = load(words, read_job)
    known, asked = costs_and_demand(job, costs, words)
    clusters = [
        cluster(job, known, n, gpus_per_node, cores_per_node, ranks_per_node, network, disk)
        for n in counts
    ]
    predictions = efficiencies([predict_cluster(asked, known, one) for one in clusters])
    found = {
        "costs": str(costs),
        "processor": known.processor,
        "warnings": warnings(known, job, clusters[-1], asked),
        "best": best(predictions).nodes,
        "fastest": min(predictions, key=lambda p: p.seconds).nodes,
        "clusters": [{**asdict(p), "node_hours": p.node_hours} for p in predictions],
    }
    return found if json else page(predictions, found)


def numbers(text: str) -> list[int]:
    """Return `1,2,4,...,1024` as a list.

    In place of ... the number before it is doubled up to the one after it. Raises ConfigError for
    anything else.
    """
    found: list[int] = []
    words = [word.strip() for word in text.split(",")]
    for i, word in enumerate(words):
        if word == "..." and found and i + 1 < len(words) and words[i + 1].isdecimal():
            while 2 * found[-1] < int(words[i + 1]):
                found.append(2 * found[-1])
        elif word.isdecimal() and int(word) > 0:
            found.append(int(word))
        else:
            raise ConfigError(
                f"--nodes {text}: {word!r} is no number of nodes; give 1,2,4 or 1,2,4,...,1024"
            )
    return sorted(set(found))


def costs_and_demand(job: Job, run: Path | None, words: Sequence[str]) -> tuple[Costs, Demand]:
    """Return the costs of the trial and the demand of the job.

    The job is set up here as in a run of one rank, on the CPU.
    """
    from hpcfed.algorithms.base import RoundBased
    from hpcfed.comm import Serial
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.setup import federation, world
    from hpcfed.launch.plan.costs import costs
    from hpcfed.launch.plan.demand import demand, everybody

    if run is None:
        other = without(words, "rounds", "out", "overwrite")
        raise ConfigError(
            "plan: no measured costs; make a short run, on one rank or as many as a node has "
            "cores or "
            "GPUs, and name it:\n"
            f"  python -m hpcfed.main "
            f"{shlex.join([*other, '--rounds', '3', '--out', 'runs/trial'])}\n"
            f"  hpcfed plan {shlex.join([*words, '--costs', 'runs/trial'])} --nodes 1,2,4"
        )
    if not isinstance(job.algorithm, RoundBased):
        raise ConfigError(
            f"plan: {job.algorithm.name} has no rounds; plan knows methods in synchronous rounds"
        )
    own = job.run.model_copy(update={"device": "cpu", "precision": "float32", "speeds": ()})
    local = job.model_copy(update={"run": own})
    facts = world(local, Serial())
    fed = Rounds(federation(local, Serial(), facts)).fed
    known = costs(run, everybody(fed))
    return known, demand(fed, tests(job, facts), known)


def without(words: Sequence[str], *fields: str) -> list[str]:
    """Return a command line without these flags and their values."""
    kept, dropped = [], False
    for word in words:
        if word.startswith("--"):
            dropped = word[2:].partition("=")[0] in fields
        if not dropped:
            kept.append(word)
    return kept


def tests(job: Job, facts: World) -> np.ndarray:
    """Return the number of test examples of each client, [K].

    For a population it is estimated as its training examples times the share.
    """
    if facts.many:
        return np.asarray(facts.partition.sizes) * job.data.test_share
    return np.array([len(rows) for rows in facts.rows.test])


def cluster(
    job: Job,
    known: Costs,
    nodes: int,
    gpus: int,
    cores: int | None,
    each: int | None,
    far: str,
    disk: str,
) -> Cluster:
    """Return a cluster of so many nodes. Raises ConfigError for impossible numbers."""
    cores = known.cores if cores is None else cores
    each = each if each is not None else gpus or max(1, cores // job.run.threads)
    for flag, value, least in (("gpus", gpus, 0), ("cores", cores, 1), ("ranks", each, 1)):
        if value < least:
            raise ConfigError(f"--{flag}-per-node {value}: give at least {least}")
    if nodes * each > MOST:
        raise ConfigError(f"--nodes {nodes}: {nodes * each} ranks; the model goes up to {MOST}")
    if (known.processor == "cpu") == bool(gpus):
        raise ConfigError(
            f"plan: the short run computed on {known.processor}, but --gpus-per-node is {gpus}; "
            "make it where the ranks will compute"
        )
    return Cluster(
        nodes,
        each,
        cores,
        network(far),
        gpus,
        job.run.threads,
        disk=disks(disk),
        speeds=job.run.speeds,
    )


def predict_cluster(asked: Demand, known: Costs, one: Cluster) -> Prediction:
    """Return the prediction; memory of a rank besides weights is as in the trial."""
    size = asked.size
    own = [
        weights([kind for kind in kinds if kind in size], size, asked.stateless)
        for kinds in known.held
    ]
    return predict(
        asked, one, peak=max(0.0, known.peak - max(own)), gpu=max(0.0, known.gpu - max(own))
    )


def efficiencies(found: list[Prediction]) -> list[Prediction]:
    """Return the predictions with their efficiency relative to the first, smallest cluster."""
    first = found[0]
    return [
        replace(p, efficiency=first.seconds * first.nodes / (p.seconds * p.nodes)) for p in found
    ]


def best(found: list[Prediction]) -> Prediction:
    """Return the largest cluster that is worth using.

    It has at least half of the smallest one's efficiency, and is faster than all smaller ones.
    """
    paying = [
        p
        for i, p in enumerate(found)
        if p.efficiency >= PAYS and all(p.seconds < before.seconds for before in found[:i])
    ]
    return paying[-1]


def warnings(known: Costs, job: Job, largest: Cluster, asked: Demand) -> list[str]:
    """Return the reasons why the prediction is less certain."""
    from hpcfed.launch.plan.costs import differing_fields

    found = [f"the short run had another {name}" for name in differing_fields(known, job.plain())]
    if largest.ranks > len(asked.cohorts[0]):
        found.append(
            f"only {len(asked.cohorts[0])} groups of clients train in a round: more ranks stay idle"
        )
    return found


def page(found: list[Prediction], facts: dict[str, Any]) -> Group:
    """Return the predictions for people."""
    rows = [row(p) for p in found]
    told = [Text(f"warning: {line}") for line in facts["warnings"]]
    most = max(found, key=lambda p: p.gpu)
    more = [Text(f"memory a GPU: at most {size(most.gpu)}")] if most.gpu else []
    return Group(
        *told,
        table(HEADS, rows),
        Text(
            f"\na checkpoint is written in {duration(found[0].save)} on {found[0].nodes} nodes, "
            f"{duration(found[-1].save)} on {found[-1].nodes}, while rounds go on"
        ),
        *more,
        Text(
            f"{facts['best']} nodes pay: the most with an efficiency of at least {PAYS:.0%}; "
            f"the fastest are {facts['fastest']}"
        ),
    )


def row(p: Prediction) -> tuple[object, ...]:
    """Return one cluster's row."""
    other = p.seconds - sum(p.parts[name] for name in ("train", "evaluate", "wait", "communicate"))
    parts = [f"{p.parts[name]:.3g}" for name in ("train", "evaluate", "wait", "communicate")]
    return (
        p.nodes,
        p.ranks,
        f"{p.seconds:.3g} s",
        *parts,
        f"{other:.3g}",
        f"{p.efficiency:.0%}",
        duration(3600 * p.hours),
        f"{p.node_hours:.3g}",
        size(p.memory),
    )
