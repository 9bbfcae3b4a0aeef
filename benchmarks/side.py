"""hpcfed on a device with one engine and one precision, as a candidate of `gpu.py`."""

from __future__ import annotations

from time import perf_counter

import torch
from cases import CLASSES, Case
from torch.profiler import ProfilerActivity, profile

from hpcfed.machine import devices
from hpcfed.models.cost import work

SIDES = {"eager": "float32", "graphed": "float32", "graphed tf32": "tf32", "graphed bf16": "bf16"}
# of a device whose name holds this: 10^12 flop/s by precision, dense, from the makers' data sheets
PEAK = {
    "H100 PCIe": {"float32": 51, "tf32": 378, "bf16": 756},
    "H100": {"float32": 67, "tf32": 494, "bf16": 989},
    "H200": {"float32": 67, "tf32": 494, "bf16": 989},
    "A100": {"float32": 19.5, "tf32": 156, "bf16": 312},
}


class Side:
    """hpcfed with one engine and precision: calling it makes a round."""

    def __init__(self, case: Case, kind: str, name: str):
        self.case, self.precision = case, SIDES[name]
        flags = (
            "--training.engine",
            name.split()[0],
            "--run.precision",
            self.precision,
            "--run.device",
            kind,
        )
        self.rounds = case.rounds(*flags)
        self.fed, self.device = self.rounds.fed, self.rounds.fed.device

    def __call__(self) -> None:
        devices.prepare(self.device, 1, self.precision)  # the settings are the process's
        self.rounds.step()
        self.wait()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def weights(self) -> list[bytes]:
        """The weights of all clients."""
        return [self.fed.store.flat(k).cpu().numpy().tobytes() for k in range(self.fed.K)]

    @property
    def flop(self) -> float:
        """Of a round: three passes of two views of each example, whole kernels counted."""
        adds = {
            a: work(a, self.case.shape, CLASSES, self.fed.d).multiply_adds
            for a in set(self.fed.architectures)
        }
        return sum(2 * 3 * 2 * self.case.n * adds[a] for a in self.fed.architectures)

    @property
    def peak_flop_rate(self) -> float | None:
        """Of the device in this precision, a second; None: not known."""
        name = devices.describe(self.device)
        return next(
            (1e12 * peak[self.precision] for part, peak in PEAK.items() if part in name), None
        )

    def train(self, k: int) -> None:
        """Client k's part of a round."""
        devices.prepare(self.device, 1, self.precision)
        self.fed.participation.open(self.rounds.t)
        self.rounds.algorithm.local(self.fed, self.fed.clients[k], self.rounds.state, self.rounds.t)
        self.wait()

    def first(self) -> dict[str, int]:
        """The first client of each architecture."""
        return {name: self.fed.architectures.index(name) for name in self.fed.architectures}

    def shares(self) -> tuple[float, float]:
        """Of the time in which one client of each architecture trains: that which the host spends
        on launches, and that in which kernels run."""
        activity = ProfilerActivity.CUDA if self.device.type == "cuda" else ProfilerActivity.CPU
        with profile(activities=[activity]) as profiled:
            start = perf_counter()
            for k in self.first().values():
                self.train(k)
            wall = 1e6 * (perf_counter() - start)
        found = profiled.key_averages()
        launching = sum(e.self_cpu_time_total for e in found if "Launch" in e.key)
        running = sum(
            e.self_device_time_total
            for e in found
            if e.device_type == torch.autograd.DeviceType.CUDA
        )
        return launching / wall, running / wall

    def peaks(self) -> dict[str, int]:
        """By architecture, bytes that the training of one client takes at most, beside what
        rests.
        """
        return {name: self.peak(k) for name, k in self.first().items()}

    def peak(self, k: int) -> int:
        if self.device.type == "cpu":
            return 0
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.train(k)
        return torch.cuda.max_memory_allocated(self.device) - before
