"""Energy of processors and GPUs, in joules, from the counters of the machine.

- Processors: Intel's and AMD's RAPL counters below /sys/class/powercap, of each package. Since
  Linux 5.10 they are readable for root alone, unless the site has changed that.
- GPUs: NVIDIA's counter by NVML (extra "energy"), since Volta.

A counter counts all that its package or GPU does, other jobs on the node included. One rank reads
each: the first of a node its packages, and the first of those that share a GPU this GPU. Counters
are updated every millisecond (RAPL) or every 20 to 100 ms (NVML), so that shorter phases are right
in sum only. Where nothing can be read there is no number: a processor's rated power is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import finalize, ref

if TYPE_CHECKING:
    import torch

    from hpcfed.comm import Comm

POWERCAP = Path("/sys/class/powercap")
OTHER = "other"  # what is used in no phase
MOST_WATTS = 1000.0  # that a package may draw
MICRO, MILLI = 1e-6, 1e-3
KWH = 3.6e6  # joules


@dataclass
class Counter:
    """A counter of energy that only grows, and may begin again from 0.

    name: what it counts.  read: returns its value, in joules.
    span: joules after which it begins again; 0: never.
    """

    name: str
    read: Callable[[], float]
    span: float = 0.0

    def __post_init__(self) -> None:
        self._last = self.read()

    def since(self) -> float:
        """Return the joules since the last call."""
        now = self.read()
        used = now - self._last
        self._last = now
        return used + self.span if used < 0 else used


class Meter:
    """The counters that a rank reads, and the joules of each phase.

    A thread also reads counters that begin again, so that none does so twice between two readings.

    why: why there is no counter; "" if there is one.
    """

    def __init__(self, counters: Sequence[Counter], why: str = "") -> None:
        self.counters, self.why = tuple(counters), "" if counters else why
        self.joules: defaultdict[str, float] = defaultdict(float)
        self._uncharged, self._lock = 0.0, Lock()  # joules that the thread has read
        if spans := [counter.span for counter in self.counters if counter.span]:
            ended = Event()
            finalize(self, ended.set)
            interval = max(1.0, min(spans) / MOST_WATTS / 2)
            Thread(target=keep_reading, args=(ref(self), ended, interval), daemon=True).start()

    def read(self) -> None:
        """Read the counters, for the phase that is charged next."""
        with self._lock:
            self._uncharged += sum(counter.since() for counter in self.counters)

    def charge(self, phase: str) -> None:
        """Charge a phase with all that was used since the last call."""
        self.read()
        with self._lock:
            self.joules[phase] += self._uncharged
            self._uncharged = 0.0

    def reset(self) -> dict[str, float]:
        """Return the joules since the last reset, by phase, and reset them."""
        used, self.joules = dict(self.joules), defaultdict(float)
        return used


def keep_reading(reference: ref[Meter], ended: Event, interval: float) -> None:
    """Read the counters of a meter every `interval` seconds, as long as the meter exists."""
    while not ended.wait(interval):
        if meter := reference():
            meter.read()
        del meter  # else this thread would keep it


def meter_of_rank(comm: Comm, device: torch.device) -> Meter:
    """Return the meter of this rank; collective."""
    gpu = uuid_of(device)
    gpus = comm.gather({comm.rank: [comm.node_of[comm.rank], gpu]})
    shares = [rank for rank, place in gpus.items() if place == gpus[comm.rank]]
    counters: list[Counter] = []
    reasons = []
    if comm.local_rank == 0:
        try:
            counters += packages()
        except OSError as error:
            reasons.append(str(error))
    if gpu and min(shares) == comm.rank:
        try:
            counters.append(nvml_counter(gpu))
        except Exception as error:  # nvidia-ml-py is missing, or raises one of its many errors
            reasons.append(f"no energy of the GPU: {error}")
    return Meter(counters, "; ".join(reasons))


def packages(folder: Path = POWERCAP) -> list[Counter]:
    """Return the counters of the processor's packages. Raises OSError with the reason for none."""
    counters = list(package_counters(folder))
    if not counters:
        raise OSError(f"no energy of the processor: there are no RAPL counters below {folder}")
    return counters


def package_counters(folder: Path) -> Iterator[Counter]:
    for path in sorted(folder.glob("intel-rapl:*")):
        if path.name.count(":") > 1:  # a part of a package
            continue
        name = (path / "name").read_text().strip()
        if not name.startswith("package"):  # psys is the platform, which includes the packages
            continue
        file, span = path / "energy_uj", float((path / "max_energy_range_uj").read_text()) * MICRO
        try:
            yield Counter(name, partial(read_microjoules, file), span)
        except PermissionError as error:
            raise PermissionError(
                f"no energy of the processor: only root may read {file}; ask the site to allow it"
            ) from error


def read_microjoules(file: Path) -> float:
    """Return the joules in a file of microjoules."""
    return float(file.read_text()) * MICRO


def uuid_of(device: torch.device) -> str:
    """Return the name by which NVML knows a GPU; "" for a CPU."""
    if device.type != "cuda":
        return ""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def nvml_counter(uuid: str) -> Counter:
    """Return the counter of a GPU."""
    import pynvml

    pynvml.nvmlInit()
    handle: Any = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return Counter(uuid, lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) * MILLI)


def carbon(joules: float, grams_per_kwh: float, overhead: float) -> float:
    """Return kg of CO2 equivalents: joules / 3.6e6 * PUE * g / kWh / 1000."""
    return joules / KWH * overhead * grams_per_kwh / 1000
