"""The description of a run in its result file, and the lines that a run begins with."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed.algorithms.base import shares_all
from hpcfed.algorithms.decentralised.peers import Peers
from hpcfed.config.architectures import find
from hpcfed.config.evaluate import EVERYBODY, evaluates_all
from hpcfed.config.job import EXACT
from hpcfed.core.architecture import Architecture
from hpcfed.core.shapes import Shapes, write_numbers, write_shape
from hpcfed.core.version import __version__
from hpcfed.core.wording import join_few
from hpcfed.engine import changed_code
from hpcfed.engine.world import natural_clients
from hpcfed.federation.replay_log import WHY
from hpcfed.machine import devices
from hpcfed.machine.processor import find_bfloat16, name_processor
from hpcfed.models.own_code import digests
from hpcfed.models.user_model import describe_call
from hpcfed.results.privacy import NOT_HIDDEN, scope
from hpcfed.storage.columns import LISTED
from hpcfed.storage.record import JOB_ID, RUN_ID

if TYPE_CHECKING:
    from hpcfed.config.job import Job
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.world import World
    from hpcfed.federation.federation import Federation

# largest number of clients whose links are recorded; K clients may have K^2 / 2 links
GRAPH = 1_000
NAMES = 3  # largest number of natural clients in the name of a client
COLUMNS, ARCHITECTURES = 60, 20  # largest numbers of columns and architectures that are printed
LIBRARIES = ("torch", "torchvision", "numpy", "h5py", "mpi4py", "pydantic")


def header(job: Job, facts: World, rounds: Rounds) -> dict[str, Any]:
    """Return the header of the result file."""
    return {
        "job": job.plain(),
        RUN_ID: rounds.run_id,
        "algorithm": job.algorithm.name,
        "data": facts.data.name,
        "classes": list(facts.data.classes),
        "client_names": client_names(job, facts),
        "task": facts.data.task.name,
        "task_facts": facts.data.task.facts(),
        "metrics": list(rounds.fed.data.metrics),
        "groups": list(facts.data.group_names),
        "inputs": inputs(facts),
        "architectures": list(
            facts.architectures if job.clients <= LISTED else rounds.recorder.kinds
        ),
        # whether clients receive every tensor of a model
        "receives_model": shares_all(rounds.algorithm, rounds.fed),
        "faults": list(WHY),  # the meanings of the numbers in clients/fault
        "engine": engine(rounds.fed),
        "ranks": rounds.fed.comm.size,
        "placement": placement_of(rounds),
        "own": digests(changed_code.names_of(job)),
        "data_digests": dict(facts.data_digests),
        "file_digests": dict(facts.file_digests),
        "versions": versions(),
        "commit": commit(),
        "hardware": hardware(rounds.fed),
        JOB_ID: os.environ.get("SLURM_JOB_ID", ""),
    } | ({"privacy": rounds.fed.account.facts()} if rounds.fed.account else {})


def engine(fed: Federation) -> str:
    """Return the engine of local training as far as bits depend on it, as a job's identity does."""
    decided = fed.job.training.engine
    return decided if decided == "stacked" else EXACT["engine"]


def inputs(facts: World) -> dict[str, Any]:
    """Return the facts about inputs that a trained model needs without the data."""
    data = facts.data
    return {
        "shape": write_shape(facts.shape),
        "mean": write_numbers(data.mean),
        "std": write_numbers(data.std),
        "vocabulary": data.vocabulary,
        "encoder": data.encoder.plain(),
    } | ({"modalities": modalities(facts)} if facts.modalities else {})


def client_names(job: Job, facts: World) -> list[str]:
    """Return the name of each client; [] if they have none, or for more than LISTED clients.

    A client that has the examples of several natural clients has the names of all of them. Clients
    that share those of one are numbered.
    """
    users = natural_clients(job, facts) if job.clients <= LISTED else []
    shared = [join_few(names, NAMES, " + ") for names in users]
    per_domain = job.data.clients_per_domain
    if per_domain == 1:
        return shared
    return [f"{name} {k % per_domain + 1}" for k, name in enumerate(shared)]


def modalities(facts: World) -> list[list[str]]:
    """Return the names of each client's modalities; [] for more than LISTED clients."""
    assert facts.modalities is not None
    return (
        [list(of_client) for of_client in facts.modalities.clients]
        if len(facts.modalities.clients) <= LISTED
        else []
    )


def placement_of(rounds: Rounds) -> list[int]:
    """Return the rank of each client; [] for more than LISTED clients."""
    return list(rounds.fed.placement.ranks) if rounds.fed.K <= LISTED else []


def arrays(facts: World, rounds: Rounds) -> dict[str, np.ndarray]:
    """Return the constant arrays of the result file: partition, label counts, and links.

    partition: rows of the training split, client after client, `train_sizes` of each. It is one
    array, not one per client, because the file is written anew each time.  links: [E, 2], pairs of
    neighbours if the method has no server.  edges: [K], each client's edge server if the job has
    edge servers.
    A population has no arrays: the job describes it completely.
    """
    if facts.many:
        return {}  # the job describes it completely
    edges = {"edges": facts.edges.of} if facts.edges else {}
    split, data = facts.rows, facts.data
    counts = split.counts(data.train.y, data.task, len(data.classes))
    return (
        ({"label_counts": counts} if data.task.categories else {})
        | {
            "train_sizes": np.array([len(rows) for rows in split.train]),
            "test_sizes": np.array([len(rows) for rows in split.test]),
            "partition": split.everything,
        }
        | neighbours(rounds)
        | edges
    )


def neighbours(rounds: Rounds) -> dict[str, np.ndarray]:
    """Return the links between clients of a method without a server.

    The result is {} for other methods, and for more than GRAPH clients.
    """
    if not isinstance(rounds.algorithm, Peers) or rounds.fed.K > GRAPH:
        return {}
    return {"links": np.argwhere(np.triu(rounds.algorithm.links(rounds.fed))).astype(np.int32)}


def versions() -> dict[str, str]:
    """Return the versions of hpcfed, Python and the libraries that results depend on."""
    installed = {"hpcfed": __version__, "python": platform.python_version()}
    return installed | {name: version_of(name) for name in LIBRARIES}


@cache
def version_of(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


@cache
def commit() -> str:
    """Return the git commit of hpcfed's files, as they are at this process's first run.

    It ends in "+" if the files were changed since, and is "" outside a git checkout, and where
    hpcfed is installed below a checkout of something else.
    """

    this = Path(__file__)

    def git(*words: str) -> str:
        command = ["git", "-C", str(this.parent), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", this.name)
        return git("describe", "--always", "--abbrev=40", "--dirty=+")
    except (OSError, subprocess.SubprocessError):
        return ""


def hardware(fed: Federation) -> dict[str, Any]:
    """Return a description of the machine and the device of rank 0."""
    return {
        "cpu": name_processor(),
        "cores": fed.cores,
        "device": devices.describe(fed.device),
        **({"ranks_per_gpu": fed.gpu.ranks} if fed.gpu.ranks else {}),
        "threads": torch.get_num_threads(),
        "nodes": len(set(fed.comm.node_of)),
        "system": platform.platform(),
    }


def setting(facts: World, fed: Federation) -> list[str]:
    """Return lines about what models get and what they are, and who is evaluated.

    They name inputs, columns, architectures.
    """
    data, C = facts.data, len(facts.data.classes)
    lines = [f"inputs: {describe_inputs(facts)}; {data.task.describe(C)}"]
    lines += [f"  {column}" for column in data.columns[:COLUMNS]]
    if (more := len(data.columns) - COLUMNS) > 0:
        lines.append(f"  and {more:,} more columns")
    what = "trained parameters" if fed.store.finetuning.some else "parameters"
    for name in sorted(set(facts.architectures))[:ARCHITECTURES]:
        called = "".join(f", from {call}" for call in calls(name, fed))
        lines.append(f"model {name}: {fed.store.layout(name).n_params:,} {what}{called}")
    if fed.job.run.precision == "bf16":
        lines += precision_lines(facts.architectures, fed)
    if fed.job.evaluate.clients == "auto" and not evaluates_all("auto", fed.K):
        lines.append(
            f"evaluated: the cohort of each round, not all {fed.K:,} clients; for all set "
            f"evaluate.clients = 'all' (auto evaluates all of up to {EVERYBODY:,})"
        )
    return lines + privacy_lines(fed)


def precision_lines(architectures: Sequence[str], fed: Federation) -> list[str]:
    """Return lines about bfloat16: what the processor has, and which layers are computed in it.

    fed: of a job with run.precision = "bf16".
    """
    lines, names = [], sorted(set(architectures))
    if fed.device.type == "cpu":
        processor = find_bfloat16()
        words = {None: "what the processor has is not known", "": "emulated"}
        lines.append(f"bfloat16: {words.get(processor, processor)} (run.precision)")
    n = min(fed.job.local.batch, fed.largest) * fed.job.algorithm.views
    if fed.job.privacy.by == "examples":  # whose gradients are computed one by one
        n = 1
    least = {name: fed.store.bf16_batches(name) for name in names}
    if not any(batch <= n for batches in least.values() for batch in batches.values()):
        return [
            *lines,
            f"  no layer of the models is computed in it for batches of {n:,} examples: "
            "run.precision = 'bf16' changes nothing in local training",
        ]
    return lines + [f"  {name}: {low_layers(least[name], n)}" for name in names[:ARCHITECTURES]]


def low_layers(least: Mapping[str, float], n: int) -> str:
    """Return in words how many layers are computed in bfloat16 for batches of n examples.

    least: what `least_batches` returns.
    """
    layers = [batch for name, batch in least.items() if name]
    text = f"{sum(batch <= n for batch in layers)} of {len(layers)} layers for {n:,} examples"
    return text + (", and products outside of layers" if "" in least else "")


def privacy_lines(fed: Federation) -> list[str]:
    """Return lines about what is hidden, and what is not; [] if the job hides nothing."""
    privacy, account = fed.job.privacy, fed.account
    if privacy.by == "none":
        return []
    assert privacy.clip is not None
    if privacy.bounds:
        weights = f"min(n, {privacy.cap:g})" if privacy.cap else "1"
        lines = [
            f"privacy: {privacy.by}, uploads of norm up to {privacy.clip:g} ({privacy.clipping}), "
            f"a client with n examples has weight {weights}"
        ]
    else:
        lines = [f"privacy: examples, each with a gradient of norm up to {privacy.clip:g}"]
    if account is None:
        return [*lines, "  no noise (privacy.noise, privacy.epsilon): nothing is hidden"]
    facts, target = account.facts(), privacy.epsilon
    origin = f", computed for epsilon {target:g}" if target and privacy.noise is None else ""
    budget = f"; ends before epsilon exceeds {target:g}" if target and privacy.noise else ""
    return [
        *lines,
        f"  noise multiplier {account.z:g}{origin}{budget}; {facts['cohorts']}",
        f"  epsilon: {scope(facts)}",
        f"  {NOT_HIDDEN}",
    ]


def calls(architecture: str, fed: Federation) -> list[str]:
    """Return how users' models in an architecture are called, as Net(in_channels=3)."""
    bases = [part.base for part in Architecture.parse(architecture).parts]
    entries = [find(base) for base in bases if ":" in base and find(base).own]
    return [describe_call(entry.load(), *fed.store.form) for entry in entries]


def describe_inputs(facts: World) -> str:
    """Return what one example is, in words: "images of 3 x 32 x 32 (channels x height x width)"."""
    data, shape = facts.data, facts.shape
    if isinstance(shape, Shapes):
        return str(shape)
    if data.vocabulary:
        return f"texts of {shape[0]:,} tokens, a vocabulary of {data.vocabulary:,}"
    if len(shape) == 1:
        return f"rows of {shape[0]:,} numbers"
    axes = ("channels", "height", "width") if len(shape) == 3 else ("channels", "steps")
    kind = "images" if len(shape) == 3 else "sequences"
    return f"{kind} of {' x '.join(map(str, shape))} ({' x '.join(axes)})"
