"""Findings from the facts of all ranks of a world: nodes, cores, GPUs, shared memory.

All are pure functions of these facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from hpcfed.core.tables import size, table
from hpcfed.core.wording import join_few
from hpcfed.machine.gpu_sharing import MPS, sharers, take

SHOWN = 8  # ranks
COLOURS = {"ok": "green", "warning": "yellow", "wrong": "bold red"}
Ranks = Sequence[dict[str, Any]]  # by rank, as `probe.inspect_rank` makes it


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    status: "ok"; "warning" if runs work but could be better; "wrong" if runs fail or mislead.
    """

    what: str
    status: str
    found: str
    advice: str = ""


def render(findings: Sequence[Finding]) -> Table:
    """Return a table with a row for each finding, and the advice under it."""
    grid = table("what,,found and what to do", [])
    grid.columns[2].overflow = "fold"
    for finding in findings:
        text = Text(finding.found)
        if finding.advice:
            text.append(f"\n-> {finding.advice}", style="" if finding.status == "ok" else "bold")
        grid.add_row(Text(finding.what), Text(finding.status, style=COLOURS[finding.status]), text)
    return grid


def nodes(ranks: Ranks, allocated: int) -> list[Finding]:
    """Return a warning unless the ranks use all nodes of the allocation.

    allocated: number of its nodes; 0 outside of one.
    """
    used = len({rank["node"] for rank in ranks})
    if used >= min(allocated, len(ranks)):
        return []
    return [
        Finding(
            "nodes",
            "warning",
            f"{len(ranks)} ranks are on {used} of {allocated} nodes",
            "srun --ntasks-per-node=N, or mpirun --map-by ppr:N:node; a mapping policy in the "
            "environment (PRTE_MCA_rmaps_...) may crowd them",
        )
    ]


def cores(ranks: Ranks, threads: int) -> Finding:
    """Return the finding whether each rank has as many cores for itself as run.threads."""
    for node in sorted({rank["node"] for rank in ranks}):
        sets = [set(rank["cores"]) for rank in ranks if rank["node"] == node]
        n = len(set().union(*sets))
        if n < len(sets) * threads:
            return Finding(
                "cores",
                "warning",
                f"node {node}: {len(sets)} ranks x {threads} threads have {n} cores",
                f"start at most {max(1, n // threads)} ranks per node, ask for more "
                "--cpus-per-task, or, if ranks are bound to the same cores, mpirun --bind-to none",
            )
    r = next((i for i, rank in enumerate(ranks) if len(rank["cores"]) < threads), None)
    if r is not None:
        return Finding(
            "cores",
            "warning",
            f"rank {r} is bound to {len(ranks[r]['cores'])} cores, run.threads = {threads}",
            f"srun --cpus-per-task={threads}, or mpirun --map-by slot:PE={threads} or --bind-to "
            "none",
        )
    counts = sorted({len(rank["cores"]) for rank in ranks})
    return Finding(
        "cores",
        "ok",
        f"{' or '.join(map(str, counts))} for each rank, of which it uses {threads} (run.threads)",
    )


def bfloat16(ranks: Ranks, precision: str) -> list[Finding]:
    """Return the finding whether the nodes' processors have instructions for bfloat16.

    precision: run.precision. Ranks with GPUs do not need them. The list is empty if no node says.
    """
    names = {rank["node"]: rank["bfloat16"] for rank in ranks if not rank["gpus"]}
    named = sorted({name for name in names.values() if name})
    without = [str(node) for node, name in names.items() if name == ""]
    if not without and not named:
        return []
    if not without:
        text = f"{' or '.join(named)}: large layers train faster with run.precision = 'bf16'"
        return [Finding("bfloat16", "ok", text)]
    who = "the processors have no instructions for it"
    if named:
        who = f"node {join_few(without, SHOWN)} has no instructions for it, other nodes have"
    if precision != "bf16":
        return [Finding("bfloat16", "ok", f"{who}: run.precision = 'bf16' would save no time")]
    return [
        Finding(
            "bfloat16",
            "warning",
            f"{who}: run.precision = 'bf16' is emulated by float32 and saves no time",
            "set run.precision = 'float32', or use nodes with avx512_bf16 or amx_bf16",
        )
    ]


def gpus(ranks: Ranks, allowed: int | None) -> list[Finding]:
    """Return findings about the GPU of each rank. allowed: run.ranks_per_gpu."""
    if not any(rank["present"] for rank in ranks):
        return [Finding("GPUs", "ok", "none on the ranks' nodes: they compute on CPUs")]
    blind = [i for i, rank in enumerate(ranks) if not rank["gpus"]]
    if blind:
        return [unseen(blind, ranks[blind[0]])]
    visible = {i: (rank["node"], rank["gpus"]) for i, rank in enumerate(ranks)}
    numbers, shared = take(visible), sharers(visible)
    most = max(shared.values(), key=len)
    rows = join_few([f"rank {i}: {numbers[i]} of {len(visible[i][1])}" for i in numbers], SHOWN)
    who = f"ranks {join_few(most, SHOWN)} share one ({rows})"
    if len(most) > (allowed or 1):
        advice = f"start one rank per GPU, or set run.ranks_per_gpu = {len(most)}; {MPS}"
        return [Finding("GPUs", "warning", who, advice)]
    if len(most) > 1 and not all(ranks[i]["mps"] for i in most):
        return [Finding("GPUs", "warning", who, MPS)]
    idle = len({(r["node"], name) for r in ranks for name in r["gpus"]}) - len(
        {(ranks[i]["node"], ranks[i]["gpus"][number]) for i, number in numbers.items()}
    )
    if idle:
        advice = f"start one rank for each GPU: {idle} have none"
        return [Finding("GPUs", "warning", rows, advice)]
    return [Finding("GPUs", "ok", rows)]


def unseen(blind: list[int], rank: dict[str, Any]) -> Finding:
    """Return the finding about ranks that see no GPU on a node that has some."""
    who = f"ranks {join_few(blind, SHOWN)} see none of the {rank['present']} of their node"
    if rank["mask"] == "":
        return Finding(
            "GPUs",
            "wrong",
            f"{who}: CUDA_VISIBLE_DEVICES is empty",
            "ask Slurm for --gpus-per-node, or unset it",
        )
    return Finding(
        "GPUs",
        "wrong",
        f"{who}: torch does not",
        "install torch for this driver's CUDA, ask Slurm for --gpus-per-node, or set run.device = "
        "'cpu'",
    )


def shared_memory(ranks: Ranks, data: int) -> list[Finding]:
    """Return a warning if shared memory has no space for the data, which each node has once.

    data: bytes of the job's data set, as far as they are known.
    """
    least = min(rank["shm"] for rank in ranks)
    if least >= data:
        return []
    return [
        Finding(
            "shared memory",
            "warning",
            f"{size(least)} free, too little for data of {size(data)}",
            "give the container more (--shm-size), or set TMPDIR to a folder with room, which is "
            "used instead",
        )
    ]
