"""The cores that ranks may use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcfed.comm import Comm

SYSTEM = Path("/sys/devices/system/cpu")  # Linux's description of the logical CPUs


def logical_cpus() -> list[int]:
    """Return the logical CPUs that this process may use (its affinity); all, if it has none."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores(cpus: Iterable[int], system: Path = SYSTEM) -> list[int]:
    """Return the physical cores that have these logical CPUs, each by its first logical CPU.

    With hyperthreads a core has several CPUs, and two threads on it take longer than on two cores.
    A CPU of which the system does not say this counts as a core.
    """
    return sorted({first_sibling(cpu, system) for cpu in cpus})


def first_sibling(cpu: int, system: Path) -> int:
    """Return the first logical CPU on the physical core of this one."""
    path = system / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        # such as 0,64 or 0-1
        return int(path.read_text().split(",")[0].split("-")[0])
    except (OSError, ValueError):
        return cpu


def cores_of_node(comm: Comm, system: Path = SYSTEM) -> int:
    """Return the number of physical cores that the ranks of rank 0's node may use together.

    Collective; the same on all ranks.
    """
    here = comm.node_of[comm.rank] == comm.node_of[0]
    cores = comm.gather({comm.rank: physical_cores(logical_cpus(), system) if here else []})
    return len(set().union(*cores.values()))
