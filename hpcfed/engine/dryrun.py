"""The output of `--dry-run`: the resolved job, and the plan of clients, memory and traffic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hpcfed.core.tables import console, size, table
from hpcfed.storage.fields import flat

if TYPE_CHECKING:
    from hpcfed.clients.edges import EdgeMap
    from hpcfed.engine.world import World

SHOWN = 1000  # largest number of a rank's clients that are listed
WIDE = 26  # classes that fit a line


def show(
    job: dict[str, Any],
    origins: dict[str, str],
    facts: World,
    placement: list[int],
    memory: dict[int, float],
    traffic: list[tuple[int, int]],
    balance: float,
    device: str,
    metrics: Sequence[str],
    setting: Sequence[str],
) -> None:
    """Print the plan of a run.

    origins: where each field's value comes from, for fields that do not have the job's own default.
    memory: bytes of weights by rank.  traffic: bytes down and up per round of each client.
    balance: average load of a rank over the largest.  device: description of rank 0's device.
    metrics: names of what evaluation measures.
    setting: lines about inputs and models.
    """
    out = console()
    fields = [(name, json.dumps(v), origins.get(name, "")) for name, v in flat(job).items()]
    shown = fields if job["verbose"] else [field for field in fields if field[2]]
    out.print(table("job,value,from", shown))
    if left := len(fields) - len(shown):
        out.print(f"and {left} fields with their defaults (--verbose true shows them)")
    out.print("\n" + "\n".join(setting))
    by_rank = {r: [k for k, rank in enumerate(placement) if rank == r] for r in memory}
    rows = [(r, len(ks), join_ids(ks), size(memory[r])) for r, ks in by_rank.items()]
    out.print(f"\nrank 0 computes on {device}")
    out.print(table(">rank,>clients,ids,>weights", rows))
    if not facts.many:
        out.print(partition(facts, placement))
    out.print(
        f"load: {balance:.1%} of the heaviest rank's work on average, as estimated before measuring"
    )
    down, up = (volume(list(column)) for column in zip(*traffic, strict=True))
    out.print(f"metrics: {', '.join(metrics)} (task: {facts.data.task.name})")
    out.print(f"traffic per client and round: {down} down, {up} up")
    if facts.edges and len(traffic) == len(placement):
        out.print(between_edges(facts.edges, traffic, job["edges"]["rounds"]))
    idle = [r for r, ks in by_rank.items() if not ks]
    if idle:
        out.print(f"warning: {len(idle)} of {len(by_rank)} ranks have no client")


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
    few = counts.shape[1] <= WIDE
    shown = counts if few else (counts > 0).sum(1, keepdims=True)
    heads = [f">{c}" for c in range(counts.shape[1])] if few else [">classes"]
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
