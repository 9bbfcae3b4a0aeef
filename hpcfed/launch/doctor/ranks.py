"""Findings from the facts of all ranks of a world: cores, threads, GPUs, shared memory.

All are pure functions of these facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcfed.core.tables import size
from hpcfed.core.wording import join_few
from hpcfed.launch.doctor.finding import Finding, ok, warning, wrong
from hpcfed.machine.gpu_sharing import MPS, sharers, take

SHOWN = 8  # ranks
Seen = Sequence[dict[str, Any]]  # by rank, as `probe.inspect_rank` makes it


def nodes(ranks: Seen, held: int) -> list[Finding]:
    """Return a warning unless the ranks use all nodes of the allocation.

    held: number of nodes of the allocation; 0 outside of one.
    """
    used = len({rank["node"] for rank in ranks})
    if used >= min(held, len(ranks)):
        return []
    return [
        warning(
            "nodes",
            f"{len(ranks)} ranks are on {used} of {held} nodes",
            "srun --ntasks-per-node=N, or mpirun "
            "--map-by ppr:N:node; a mapping policy in the environment (PRTE_MCA_rmaps_...) may "
            "crowd them",
        )
    ]


def binding(ranks: Seen, threads: int) -> Finding:
    """Return the finding whether each rank has as many cores of its own as threads.

    threads: run.threads.
    """
    few = [i for i, rank in enumerate(ranks) if len(rank["cores"]) < threads]
    for node in sorted({rank["node"] for rank in ranks}):
        cores = [set(rank["cores"]) for rank in ranks if rank["node"] == node]
        there = len(set().union(*cores))
        if there < len(cores) * threads:
            return warning(
                "cores",
                f"node {node}: {len(cores)} ranks x {threads} threads have {there} cores",
                f"start at most {max(1, there // threads)} ranks a node, or ask for more "
                f"--cpus-per-task; "
                "where ranks are bound to the same cores: mpirun --bind-to none",
            )
    if few:
        has = len(ranks[few[0]]["cores"])
        return warning(
            "cores",
            f"rank {few[0]} is bound to {has} of its node's cores, run.threads = {threads}",
            f"srun --cpus-per-task={threads}, or mpirun --map-by slot:PE={threads} or --bind-to "
            f"none",
        )
    each = sorted({len(rank["cores"]) for rank in ranks})
    return ok(
        "cores",
        f"{' or '.join(map(str, each))} for each rank, of which it uses {threads} (run.threads)",
    )


def threads(ranks: Seen, wanted: int) -> Finding:
    """Return the finding about OMP_NUM_THREADS and run.threads.

    torch uses the job's number, other libraries the variable.
    """
    given = sorted({rank["threads"] for rank in ranks})
    if given == [str(wanted)]:
        return ok("threads", f"OMP_NUM_THREADS = {wanted}, as run.threads")
    shown = ", ".join(value or "not set" for value in given)
    return warning(
        "threads",
        f"OMP_NUM_THREADS: {shown}; run.threads = {wanted}",
        f"export OMP_NUM_THREADS={wanted} before the launcher: libraries beside torch start a "
        f"thread a core",
    )


def gpus(ranks: Seen, allowed: int | None) -> list[Finding]:
    """Return findings about the GPU of each rank. allowed: run.ranks_per_gpu."""
    present = {rank["node"]: rank["present"] for rank in ranks}
    if not any(present.values()):
        return [ok("GPUs", "none where the ranks are: they compute on CPUs")]
    blind = [i for i, rank in enumerate(ranks) if not rank["gpus"]]
    if blind:
        return [unseen(blind, ranks[blind[0]])]
    seen = {i: (rank["node"], rank["gpus"]) for i, rank in enumerate(ranks)}
    numbers, shared = take(seen), sharers(seen)
    most = max(shared.values(), key=len)
    rows = join_few([f"rank {i}: {numbers[i]} of {len(seen[i][1])}" for i in numbers], SHOWN)
    if len(most) > (allowed or 1):
        return [
            warning(
                "GPUs",
                f"ranks {join_few(most, SHOWN)} share one ({rows})",
                f"start one rank a GPU, or set run.ranks_per_gpu = {len(most)}; {MPS}",
            )
        ]
    return [ok("GPUs", rows), *packing(ranks, shared), *idle(ranks, numbers)]


def packing(ranks: Seen, shared: dict[int, list[int]]) -> list[Finding]:
    """Return the finding whether ranks that share a GPU compute at the same time.

    shared: by rank, the ranks on its GPU.
    """
    packed = [i for i, others in shared.items() if len(others) > 1]
    if not packed:
        return []
    alone = [i for i in packed if ranks[i]["mps"] != "runs"]
    if not alone:
        return [ok("MPS", "runs where ranks share a GPU: they compute at the same time")]
    there = any(ranks[i]["mps"] for i in alone)
    who = f"does not serve ranks {join_few(alone, SHOWN)}, which share a GPU: they take turns"
    advice = (
        "start nvidia-cuda-mps-control -d on each of their nodes before the run, or one rank a GPU"
        if there
        else "its nvidia-cuda-mps-control is not there: ask the site, or start one rank a GPU"
    )
    return [warning("MPS", who, advice)]


def unseen(blind: list[int], rank: dict[str, Any]) -> Finding:
    """Return the finding about ranks that see no GPU on a node that has some."""
    who = f"ranks {join_few(blind, SHOWN)} see none of the {rank['present']} of their node"
    if rank["mask"] == "":
        return wrong(
            "GPUs",
            f"{who}: CUDA_VISIBLE_DEVICES is empty",
            "ask Slurm for --gpus-per-node, or unset it",
        )
    return wrong(
        "GPUs",
        f"{who}: torch does not",
        "install torch for this driver's CUDA, ask Slurm for "
        "--gpus-per-node, or set run.device = 'cpu'",
    )


def idle(ranks: Seen, numbers: dict[int, int]) -> list[Finding]:
    """Return a warning about GPUs that ranks see but none of them uses."""
    shown = {(rank["node"], name) for rank in ranks for name in rank["gpus"]}
    taken = {(ranks[i]["node"], ranks[i]["gpus"][number]) for i, number in numbers.items()}
    n = len(shown - taken)
    return (
        [warning("idle GPUs", f"{n} GPUs are taken by no rank", "start one rank for each GPU")]
        if n
        else []
    )


def shared_memory(ranks: Seen, data: int) -> Finding:
    """Return the finding whether shared memory has space for the data, which each node holds once.

    data: bytes of the job's data set, as far as known.
    """
    least = min(rank["shm"] for rank in ranks)
    if least >= data:
        return ok("shared memory", f"{size(least)} free, enough for data of {size(data)}")
    return warning(
        "shared memory",
        f"{size(least)} free, too little for data of {size(data)}",
        "give the container more (--shm-size), or set TMPDIR to a folder with room, which then "
        "serves",
    )
