"""hpcfed on a device with one engine and one precision, as a candidate of `gpu.py`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from cases import Case
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hpcfed.machine import devices
from hpcfed.training import graphs
from hpcfed.training.graphs import Graph

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
        self.open(case, kind, name.split()[0], SIDES[name])

    @classmethod
    def of(cls, case: Case, kind: str, engine: str, precision: str = "float32", *more: str) -> Side:
        """That of any engine and precision, with other flags over them."""
        side = cls.__new__(cls)
        side.open(case, kind, engine, precision, *more)
        return side

    def open(self, case: Case, kind: str, engine: str, precision: str, *more: str) -> None:
        self.case, self.precision = case, precision
        words = ("--training.engine", engine, "--run.precision", precision, "--run.device", kind)
        self.rounds = case.rounds(*words, *more)
        self.fed, self.device = self.rounds.fed, self.rounds.fed.device

    def __call__(self) -> None:
        devices.prepare(self.device, 1, self.precision)  # the settings are the process's
        self.rounds.step()
        self.wait()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def weights(self) -> list[bytes]:
        """The weights of all clients that have some of their own, and what the server has."""
        states = [self.fed.store.flat(k) for k in range(self.fed.K)]
        tensors = [v for v in (*states, *self.rounds.state.values()) if isinstance(v, Tensor)]
        return [v.cpu().numpy().tobytes() for v in tensors]

    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Images in 0..1 and labels of each client: what a loop beside this one has to train on."""
        shards = [self.fed.clients[k].train for k in range(self.fed.K)]
        return [
            (torch.from_numpy(s.x[s.rows]).float() / 255, torch.from_numpy(s.labels))
            for s in shards
        ]

    def graphs(self) -> dict[str, list[Graph]]:
        """The captured graphs of each architecture."""
        return {
            name: [
                graph
                for graph in self.fed.store.skeleton(name).captured.values()
                if isinstance(graph, Graph)
            ]
            for name in self.largest()
        }

    def check_captures(self) -> dict[str, int]:
        """Graphs by architecture. RuntimeError where a graphed side has none: then it is not what
        its name says.
        """
        counts = {name: len(graphs) for name, graphs in self.graphs().items()}
        if missing := [name for name, n in counts.items() if not n]:
            raise RuntimeError(f"no step of {', '.join(missing)} was captured; see the warnings")
        return counts

    def flop_by_example(self) -> dict[str, float]:
        """By architecture, what a step multiplies and adds for one example: forward and backward,
        all views, as it is computed. Of eager steps.
        """
        counts = {}
        for name, k in self.largest().items():
            with FlopCounterMode(display=False) as counted:
                self.train(k)
            counts[name] = counted.get_total_flops() / self.fed.sizes[k]
        return counts

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
        self.fed.participants.open(self.rounds.t)
        self.rounds.algorithm.local(self.fed, self.fed.clients[k], self.rounds.state, self.rounds.t)
        self.wait()

    def largest(self) -> dict[str, int]:
        """The client with most examples of each architecture."""
        fed, by_size = self.fed, sorted(range(self.fed.K), key=lambda k: self.fed.sizes[k])
        return {fed.architectures[k]: k for k in by_size}

    def steps(self, times: int) -> dict[str, dict[str, float]]:
        """By architecture: seconds of a replay, of its launch on the host, and the share of a
        client's training in which its graph runs. Weights are other ones afterwards.
        """
        means = {}
        for name, k in self.largest().items():
            seconds = self.clock(lambda k=k: self.train(k))
            (graph, *_), full = self.graphs()[name], self.fed.sizes[k] // self.case.batch
            self.wait()
            launch = -perf_counter()
            step = self.clock(lambda graph=graph: [graph.replay() for _ in range(times)]) / times
            launch = (launch + self.launched) / times
            means[name] = {
                "seconds of a step": step,
                "of its launch": launch,
                "share of training": full * step / seconds,
            }
        return means

    def clock(self, work: Callable[[], Any]) -> float:
        """Seconds from the start of this work on the device to its end: by events on a GPU, which
        add nothing to what is between them.
        """
        if self.device.type == "cpu":
            start = perf_counter()
            work()
            self.launched = perf_counter()
            return self.launched - start
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            self.launched = perf_counter()
            self.wait()
        return begin.elapsed_time(end) / 1000

    def peaks(self) -> dict[str, int]:
        """By architecture, bytes that the training of one client takes at most, beside what
        rests.
        """
        return {name: self.peak(k) for name, k in self.largest().items()}

    def peak(self, k: int) -> int:
        if self.device.type == "cpu":
            return 0
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.train(k)
        return torch.cuda.max_memory_allocated(self.device) - before


def free() -> None:
    """Give the memory of candidates that are no longer in use back to the device."""
    gc.collect()
    graphs.place.cache_clear()  # the pool of graphs
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
