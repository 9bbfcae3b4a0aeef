"""The output of `--dry-run`: the resolved job, and the plan of clients, memory and traffic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from hpcfed.algorithms.base import Method
from hpcfed.algorithms.trial import measure
from hpcfed.core.tables import console, duration, size, table
from hpcfed.engine.calibration import local_seconds
from hpcfed.engine.describe import setting
from hpcfed.engine.fault_tolerance.background_save import KEEP
from hpcfed.engine.memory_check import need
from hpcfed.machine.assignment import makespan
from hpcfed.machine.memory_budget import uploads, weights
from hpcfed.storage.columns import LISTED
from hpcfed.storage.fields import flat

if TYPE_CHECKING:
    from hpcfed.clients.edges import EdgeMap
    from hpcfed.config.job import Job
    from hpcfed.engine.world import World
    from hpcfed.federation.federation import Federation

SHOWN = 1000  # largest number of a rank's clients that are listed
WIDE = 26  # classes that fit a line


def show(job: Job, facts: World, fed: Federation) -> None:
    """Print the plan of a run: job, placement, memory and traffic."""
    out, ranks = console(), fed.placement.ranks
    origins = job.origins()  # of fields that do not have the job's own default
    fields = [(name, json.dumps(v), origins.get(name, "")) for name, v in flat(job.plain()).items()]
    shown = fields if job.verbose else [field for field in fields if field[2]]
    out.print(table("job,value,from", shown))
    if left := len(fields) - len(shown):
        out.print(f"and {left} fields with their defaults (--verbose true shows them)")
    out.print("\n" + "\n".join([*setting(facts, fed), *time_and_disk(job, facts, fed)]))
    out.print(f"\nrank 0 computes on {fed.device}; {on_gpu(facts, fed)}")
    clients = {r: [k for k, rank in enumerate(ranks) if rank == r] for r in range(fed.comm.size)}
    out.print(table(">rank,>clients,ids,>weights,>uploads", placement(facts, fed, clients)))
    if not facts.many:
        out.print(partition(facts, ranks))
    mean_load = sum(facts.costs) / sum(fed.placement.speeds)
    balance = mean_load / makespan(facts.costs, ranks, fed.placement.speeds)
    out.print(
        f"load: {balance:.1%} of the heaviest rank's work on average, as estimated before measuring"
    )
    out.print(f"metrics: {', '.join(fed.data.metrics)} (task: {facts.data.task.name})")
    traffic = [fed.participants.announced(k) for k in range(min(fed.K, LISTED))]
    down, up = (volume(list(column)) for column in zip(*traffic, strict=True))
    out.print(f"traffic per client and round: {down} down, {up} up")
    if facts.edges and len(traffic) == len(ranks):
        summed = [(down, up - fed.choice.nbytes) for down, up in traffic]  # reports are not
        out.print(between_edges(facts.edges, summed, job.edges.rounds))
    if idle := sum(not ks for ks in clients.values()):
        out.print(f"warning: {idle} of {len(clients)} ranks have no client")


def placement(
    facts: World, fed: Federation, clients: dict[int, list[int]]
) -> list[tuple[int, int, str, str, str]]:
    """Return the rows of the table of ranks: clients, their ids, and bytes of weights and uploads.

    Uploads are those of a round.
    clients: by rank.
    """
    bytes_each = {name: fed.store.layout(name).size * 4 for name in set(facts.architectures)}
    stateless = fed.store.stateless
    memory = {
        rank: float(weights([facts.architectures[k] for k in ks], bytes_each, stateless))
        for rank, ks in clients.items()
    }
    sent = upload_bytes(facts, fed, clients)
    return [
        (rank, len(ks), join_ids(ks), size(memory[rank]), size(sent[rank]))
        for rank, ks in clients.items()
    ]


def upload_bytes(facts: World, fed: Federation, clients: dict[int, list[int]]) -> dict[int, float]:
    """Return the most bytes of memory that the uploads of a round take, by rank.

    Stateless clients of a cohort are placed anew in each round; of others a rank may have all.
    clients: by rank.
    """
    measured, each = measure(fed), dict[str, int]()
    for k in range(min(fed.K, LISTED)):
        name = facts.architectures[k]
        each[name] = max(each.get(name, 0), measured.upload_memory(k))
    most = -(-fed.cohort_size // len(clients)) if fed.store.stateless else fed.cohort_size
    sizes = {
        rank: sorted((each.get(facts.architectures[k], 0) for k in ks), reverse=True)
        for rank, ks in clients.items()
    }
    return {rank: uploads(sum(nbytes[:most])) for rank, nbytes in sizes.items()}


def time_and_disk(job: Job, facts: World, fed: Federation) -> list[str]:
    """Return lines about the time of local training and the size of checkpoints."""
    lines = []
    if job.algorithm.samples_cohorts and (each := local_seconds(facts, fed)):
        each *= job.participation
        lines.append(
            f"local training: about {duration(each)} a round on the busiest rank, "
            f"{duration(each * job.rounds)} in all (a step was measured; evaluation and the "
            f"server's work come on top)"
        )
    total = sum(fed.store.layout(name).size * 4 for name in facts.architectures)
    clients = "" if fed.store.stateless else f"{size(total)} of weights, "
    final = type(job.algorithm).finish is not Method.finish and job.adapt.how == "none"
    again = f"; after its final step the method saves up to {size(total)} of weights" * final
    lines.append(
        f"checkpoints: each has {clients}the server's state and what clients remember; "
        f"up to {(job.checkpoint.keep or KEEP) + 1} are on disk{again}"
    )
    return lines


def on_gpu(facts: World, fed: Federation) -> str:
    """Return a phrase about the GPU memory that rank 0 needs."""
    takes = size(need(facts, fed).total)
    if fed.gpu.memory:
        return f"it takes at least {takes} of its {size(fed.gpu.memory)} of the GPU's memory"
    return f"on a GPU it would take about {takes} (an estimate)"


def between_edges(edges: EdgeMap, traffic: Sequence[tuple[int, int]], every: int) -> str:
    """Return a line on what the edges receive from the server and send to it.

    traffic: of each client. every: rounds from one aggregation by the server to the next.
    """
    groups = [[traffic[k] for k in ks] for ks in edges.split(range(len(traffic))).values()]
    down, up = (size(sum(max(pair[i] for pair in group) for group in groups)) for i in (0, 1))
    when = "in each round" if every == 1 else f"every {every} rounds"
    return (
        f"traffic between {edges.number} edges and the server, {when}, with all clients: {down} "
        f"down, {up} up"
    )


def join_ids(ks: list[int]) -> str:
    """Return the ids as one string, shortened after SHOWN ids."""
    return ",".join(map(str, ks[:SHOWN])) + (",..." if len(ks) > SHOWN else "") or "none"


def volume(bytes_: list[int]) -> str:
    """Return an amount of bytes in words, or its range if clients differ."""
    low, high = min(bytes_), max(bytes_)
    return (
        f"{size(low)} ({low} bytes)"
        if low == high
        else f"{size(low)} to {size(high)} ({low} to {high} bytes)"
    )


def partition(facts: World, placement: list[int]) -> Table:
    """Return a table of the partition, with one row for each client.

    The columns count the client's examples of each class; with more than WIDE classes, one column
    counts its classes.
    """
    counts = facts.rows.counts(facts.data.train.y, facts.data.task, len(facts.data.classes))
    if not facts.data.task.categories:
        counts = counts[:, :0]
    narrow = counts.shape[1] <= WIDE
    shown = counts if narrow else (counts > 0).sum(1, keepdims=True)
    heads = [f">{c}" for c in range(counts.shape[1])] if narrow else [">classes"]
    rows = [
        (
            k,
            facts.architectures[k],
            placement[k],
            len(facts.rows.test[k]),
            facts.rows.sizes[k],
            *row,
        )
        for k, row in enumerate(shown)
    ]
    return table(",".join([">client,architecture,>rank,>test,>train", *heads]), rows)
