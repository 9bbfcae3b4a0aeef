"""`hpcfed plan JOB.toml [fields] --costs RUN --nodes 1,2,4,...,1024`: resources of a run.

It also says how many nodes are worth using.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.text import Text

from hpcfed.algorithms.base import is_plain
from hpcfed.algorithms.trial import measure
from hpcfed.core.errors import ConfigError
from hpcfed.core.tables import duration, size, table
from hpcfed.launch.plan.precisions import (
    FIELD,
    PRECISIONS,
    comparable,
    convert,
    measure_ratios,
    with_precision,
)
from hpcfed.launch.plan.predict import Cluster, Demand, Network, Prediction, predict
from hpcfed.machine.energy import KWH, carbon
from hpcfed.machine.memory_budget import uploads, weights
from hpcfed.storage.fields import at

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation
    from hpcfed.launch.plan.costs import Costs

# share of the smallest cluster's efficiency, below which additional nodes mostly wait
PAYS = 0.5
MOST = 100_000  # ranks
COHORTS = 5  # rounds whose cohorts stand for all
MUCH = 0.5  # share of a rank's memory from which uploads cause a warning
PARTS = ("train", "evaluate", "wait", "communicate")
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
    latency: float,
    bandwidth: float,
    json: bool = False,
) -> dict[str, Any] | Group:
    """Return the predictions for people, or with `json` as numbers.

    latency: of the network between nodes, in microseconds.  bandwidth: of it, in Gbit/s.
    Raises ConfigError for a job that cannot be planned, CheckpointError if RUN has no results.
    """
    from hpcfed.config.load import load
    from hpcfed.engine.folder import read_job
    from hpcfed.launch.plan.costs import differing_fields

    counts = numbers(nodes)
    if not (0 <= latency < math.inf and 0 < bandwidth < math.inf):
        raise ConfigError(
            f"plan: --latency {latency:g} is at least 0 microseconds, and --bandwidth "
            f"{bandwidth:g} above 0 Gbit/s; give finite numbers"
        )
    network = Network(1e-6 * latency, 1e9 / 8 * bandwidth)
    job = load(words, read_job)
    trial, demand, ratios = costs_and_demand(job, costs, words)
    clusters = [
        cluster(job, trial, n, gpus_per_node, cores_per_node, ranks_per_node, network)
        for n in counts
    ]
    demands = in_precisions(job, trial, demand, ratios)
    by_precision = {
        name: efficiencies([predict_cluster(each, trial, one) for one in clusters])
        for name, each in demands.items()
    }
    predictions = by_precision.pop(job.run.precision)
    warnings = [
        f"the short run had another {name}"
        for name in differing_fields(trial, job.plain())
        if not (name == FIELD and ratios)  # both precisions are known
    ]
    groups = len(demand.cohorts[0])
    if clusters[-1].ranks > groups:
        warnings.append(f"only {groups} groups of clients train in a round: more ranks stay idle")
    warnings += memory_warnings(predictions[0])
    facts = {
        "costs": str(costs),
        "processor": trial.processor,
        "warnings": warnings,
        "basis": [*basis(trial, costs, clusters[-1], cores_per_node), *ratio_lines(ratios, job)],
        "best": best(predictions).nodes,
        "fastest": min(predictions, key=lambda p: p.seconds).nodes,
        "clusters": [
            {**asdict(p), "node_hours": p.node_hours, **energy(p, trial.watts, job)}
            for p in predictions
        ],
        "other_precisions": {
            name: [asdict(p) for p in others] for name, others in by_precision.items()
        },
        "float32_over_bf16": ratios,
    }
    return facts if json else page(predictions, by_precision, facts)


def memory_warnings(smallest: Prediction) -> list[str]:
    """Return a warning if uploads take most of a rank's memory on the smallest cluster."""
    if smallest.uploads < MUCH * smallest.memory:
        return []
    return [
        f"on {smallest.ranks} ranks, {size(smallest.uploads)} of a rank's {size(smallest.memory)} "
        "of memory are uploads of a round: run.resident does not limit them; more ranks or a "
        "lower participation reduce them"
    ]


def energy(prediction: Prediction, watts: float | None, job: Job) -> dict[str, float | None]:
    """Return the joules of a run, and kg of CO2 equivalents; None for what nothing is known of.

    watts: of a node.
    """
    if watts is None:
        return {"joules": None, "kg_co2e": None}
    joules, log = 3600 * prediction.node_hours * watts, job.log
    return {
        "joules": joules,
        "kg_co2e": None if log.carbon is None else carbon(joules, log.carbon, log.pue),
    }


def numbers(text: str) -> list[int]:
    """Return `1,2,4,...,1024` as a list.

    In place of ... the number before it is doubled up to the one after it. Raises ConfigError for
    anything else.
    """
    counts: list[int] = []
    words = [word.strip() for word in text.split(",")]
    for i, word in enumerate(words):
        if word == "..." and counts and i + 1 < len(words) and words[i + 1].isdecimal():
            while 2 * counts[-1] < int(words[i + 1]):
                counts.append(2 * counts[-1])
        elif word.isdecimal() and int(word) > 0:
            counts.append(int(word))
        else:
            raise ConfigError(
                f"--nodes {text}: {word!r} is not a number of nodes; give 1,2,4 or 1,2,4,...,1024"
            )
    return sorted(set(counts))


def in_precisions(
    job: Job, trial: Costs, demand: Demand, ratios: Mapping[str, float]
) -> dict[str, Demand]:
    """Return the demand in each precision that is known, the job's first.

    Without ratios that is the demand itself, whatever the precision of the trial.
    """
    if not ratios:
        return {job.run.precision: demand}
    source = at(trial.job, FIELD)
    names = sorted(PRECISIONS, key=lambda name: name != job.run.precision)
    return {name: convert(demand, ratios, source, name) for name in names}


def ratio_lines(ratios: Mapping[str, float], job: Job) -> list[str]:
    """Return what is known about both precisions, in words."""
    if not ratios:
        return []
    if all(ratio == 1 for ratio in ratios.values()):
        n = job.local.batch
        return [
            f"run.precision = 'bf16' changes nothing: no layer is computed in it in batches of {n}"
        ]
    texts = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    return [
        "measured here, on one step of each model: how many times as long training takes in "
        f"float32 as with run.precision = 'bf16': {texts}"
    ]


def costs_and_demand(
    job: Job, run: Path | None, words: Sequence[str]
) -> tuple[Costs, Demand, dict[str, float]]:
    """Return the costs of the trial, the demand of the job, and how long training takes in float32
    relative to bf16, by architecture; {} if that is not compared.

    The job is set up here as in a run of one rank, on the CPU.
    """
    from hpcfed.algorithms.base import RoundBased
    from hpcfed.comm import Serial
    from hpcfed.engine.decide import world
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.setup import federation
    from hpcfed.launch.plan.costs import costs
    from hpcfed.training.stacked import resolve_engine

    if run is None:
        others = without(words, "rounds", "out", "overwrite")
        raise ConfigError(
            "plan: no measured costs; make a short run, on one rank or as many as a node has "
            "cores or GPUs, and name it:\n"
            f"  python -m hpcfed.main "
            f"{shlex.join([*others, '--rounds', '3', '--out', 'runs/trial'])}\n"
            f"  hpcfed plan {shlex.join([*words, '--costs', 'runs/trial'])} --nodes 1,2,4"
        )
    if not isinstance(job.algorithm, RoundBased):
        raise ConfigError(
            f"plan: {job.algorithm.name} has no rounds; plan knows methods in synchronous rounds"
        )
    settings = job.run.model_copy(update={"device": "cpu", "precision": "bf16", "speeds": ()})
    local = job.model_copy(update={"run": settings})
    facts = world(local, Serial())
    fed = Rounds(federation(local, Serial(), facts)).fed
    fed.job = with_precision(local, "float32")  # of all that is computed here, but to compare both
    # of a population the number of test examples is an estimate
    tests = (
        np.asarray(facts.partition.sizes) * job.data.test_share
        if facts.many
        else np.array([len(rows) for rows in facts.rows.test])
    )
    trial = costs(run, fed.store.stateless)
    if trial.processor != "cpu":  # clients that a GPU trains as one are placed as one
        fed.job = resolve_engine(fed, job.algorithm, gpus=True)
    ratios = measure_ratios(fed) if comparable(job, trial) else {}
    return trial, demand(fed, tests, trial), ratios


def without(words: Sequence[str], *fields: str) -> list[str]:
    """Return a command line without these flags and their values."""
    rest, dropping = [], False
    for word in words:
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0] in fields
        if not dropping:
            rest.append(word)
    return rest


def demand(fed: Federation, tests: np.ndarray, trial: Costs) -> Demand:
    """Return the demand of a federation on one rank.

    tests: [K], test examples of each client.
    """
    from hpcfed.launch.plan.costs import local_examples

    job, method, names = fed.job, fed.job.algorithm, fed.architectures
    rates, n = np.array([trial.of(name) for name in names]), np.asarray(fed.sizes)
    local = job.local
    passes = trial.passes * local_examples(n, local.epochs, local.steps, local.batch)
    draws = [method.cohort(fed, t) for t in range(min(job.rounds, COHORTS))]
    cohorts = [cohort for cohort in draws if cohort] or [[0]]  # Poisson cohorts may be empty
    # clients encode what they send, but ranks exchange decoded values
    measured = measure(fed, encoded=not fed.transforms)
    usual = is_plain(method, "traffic")
    sent = [(measured.traffic(k) if usual else method.traffic(fed, k))[1] for k in cohorts[0]]
    upload_memory = np.zeros(len(names))
    for k in {k for cohort in cohorts for k in cohort}:
        upload_memory[k] = measured.upload_memory(k)
    values = 0 if measured.moves else max(sent) // 4
    return Demand(
        architectures=names,
        size={name: 4 * fed.store.layout(name).size for name in sorted(set(names))},
        stateless=fed.store.stateless,
        train=rates * passes,
        evaluate=trial.evaluate * rates * tests,
        rest=trial.rest,
        server=trial.server,
        cohorts=[fed.turns.grouping(cohort) for cohort in cohorts],
        evaluated=evaluated_clients(fed),
        values=values,
        uploads=0 if values else sum(sent),
        upload_memory=upload_memory,
        rounds=job.rounds,
        due=1 / job.evaluate.every,
    )


def evaluated_clients(fed: Federation) -> np.ndarray | None:
    """Return the ids of the clients that are evaluated; None: those of the cohort."""
    from hpcfed.engine.evaluation import Evaluation
    from hpcfed.launch.plan.costs import draws_evaluated

    if not draws_evaluated(fed.job.evaluate.clients, fed.K):
        return None
    return np.array(list(Evaluation(fed, fed.job.algorithm).clients_to_evaluate([])), int)


def cluster(
    job: Job,
    trial: Costs,
    nodes: int,
    gpus: int,
    cores: int | None,
    each: int | None,
    network: Network,
) -> Cluster:
    """Return the cluster of these nodes. Raises ConfigError for impossible numbers."""
    cores = trial.cores if cores is None else cores
    each = each if each is not None else gpus or max(1, cores // job.run.threads)
    for flag, value, least in (("gpus", gpus, 0), ("cores", cores, 1), ("ranks", each, 1)):
        if value < least:
            raise ConfigError(f"--{flag}-per-node {value}: give at least {least}")
    if nodes * each > MOST:
        raise ConfigError(f"--nodes {nodes}: {nodes * each} ranks; the model goes up to {MOST}")
    if (trial.processor == "cpu") == bool(gpus):
        raise ConfigError(
            f"plan: the short run computed on {trial.processor}, but --gpus-per-node is {gpus}; "
            "make it on the processor of the ranks"
        )
    speeds = job.run.speeds
    return Cluster(nodes, each, cores, network, gpus, job.run.threads, speeds, trial.at_once)


def predict_cluster(demand: Demand, trial: Costs, one: Cluster) -> Prediction:
    """Return the prediction; memory of a rank besides weights and uploads is as in the trial."""
    models: float = max(
        weights([name for name in names if name in demand.size], demand.size, demand.stateless)
        for names in trial.placed
    )
    models += uploads(
        sum(n * upload_of(demand, name) for name, n in trial.trained.items() if name in demand.size)
    )
    return predict(
        demand, one, peak=max(0.0, trial.peak - models), gpu=max(0.0, trial.gpu - models)
    )


def upload_of(demand: Demand, architecture: str) -> float:
    """Return the mean bytes of memory that uploads of a client of this architecture take."""
    nbytes = demand.upload_memory[np.array(demand.architectures) == architecture]
    return float(nbytes[nbytes > 0].mean()) if nbytes.any() else 0.0


def efficiencies(predictions: list[Prediction]) -> list[Prediction]:
    """Return the predictions with their efficiency relative to the smallest cluster, the first."""
    work = predictions[0].seconds * predictions[0].nodes
    return [replace(p, efficiency=work / (p.seconds * p.nodes)) for p in predictions]


def best(predictions: list[Prediction]) -> Prediction:
    """Return the largest cluster that is worth using.

    It has at least half of the smallest one's efficiency, and is faster than all smaller ones.
    """
    paying = [
        p
        for i, p in enumerate(predictions)
        if p.efficiency >= PAYS and all(p.seconds < before.seconds for before in predictions[:i])
    ]
    return paying[-1]


def basis(trial: Costs, run: Path | None, largest: Cluster, cores: int | None) -> list[str]:
    """Return what the figures rest on: measurements or assumptions.

    largest: the cluster with most nodes.  cores: --cores-per-node.
    """
    lines = [
        f"measured, in {run} on {trial.processor}: seconds of training, of evaluation and of the "
        "server, and memory besides weights and uploads"
    ]
    if cores is None and not largest.gpus:
        lines.append(
            f"measured: the ranks of a node may use {largest.cores} physical cores; "
            "--cores-per-node sets another number"
        )
    if trial.watts is not None:
        lines.append(
            f"measured: {trial.watts:.3g} W a node (log.energy); assumed: each node draws as much"
        )
    if largest.ranks > 1:
        lines.append(
            "computed: placement of clients, waits, and messages from --latency and --bandwidth"
        )
    if largest.gpus:
        at_once = "one rank" if trial.at_once == 1 else f"{trial.at_once} ranks"
        lines += [
            f"assumed: {at_once} a GPU compute as fast as in the short run, more take turns; with "
            "MPS they are faster, so let the short run have as many ranks on a GPU",
            "assumed: sums of uploads take as long as on a core of the CPU that was measured",
            "measured on an H200: 8 ranks were 1.2 times as fast as planned from one rank, and "
            "with MPS 2.4 to 3.9 times",
        ]
    return lines


def page(
    predictions: list[Prediction], others: Mapping[str, list[Prediction]], facts: dict[str, Any]
) -> Group:
    """Return the predictions for people.

    others: by precision; seconds of a round in them are further columns, if they differ.
    """
    gpu = max(p.gpu for p in predictions)
    heads, rows = HEADS, [row(p) for p in predictions]
    for name, head, unit in (("joules", ">kWh", KWH), ("kg_co2e", ">kg CO2e", 1.0)):
        values = [one[name] for one in facts["clusters"]]
        if values[0] is not None:
            heads += f",{head}"
            rows = [(*cells, f"{v / unit:.3g}") for cells, v in zip(rows, values, strict=True)]
    for name, different in others.items():
        if any(a.seconds != b.seconds for a, b in zip(predictions, different, strict=True)):
            heads += f",>round in {name}"
            rows = [
                (*cells, f"{p.seconds:.3g} s") for cells, p in zip(rows, different, strict=True)
            ]
    return Group(
        *(Text(f"warning: {line}") for line in facts["warnings"]),
        table(heads, rows),
        Text("\n" + "\n".join(facts["basis"])),
        *([Text(f"\nmemory a GPU: at most {size(gpu)}")] if gpu else []),
        Text(
            f"\nthe most nodes with an efficiency of at least {PAYS:.0%}: {facts['best']}; "
            f"the fastest: {facts['fastest']}"
        ),
    )


def row(p: Prediction) -> tuple[object, ...]:
    """Return one cluster's row."""
    parts = [f"{p.parts[name]:.3g}" for name in PARTS]
    return (
        p.nodes,
        p.ranks,
        f"{p.seconds:.3g} s",
        *parts,
        f"{p.seconds - sum(p.parts[name] for name in PARTS):.3g}",
        f"{p.efficiency:.0%}",
        duration(3600 * p.hours),
        f"{p.node_hours:.3g}",
        size(p.memory),
    )
