"""Ours beside other simulators of federated learning, each in an environment of its own, taking
turns in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import h5py
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import simulators  # noqa: E402
from paired import Row, interleaved, ratio, save  # noqa: E402
from simulators import Peer, output  # noqa: E402

LEARNT = 0.25  # accuracy at the end, by which a peer has trained (10 classes)
TRAIN, TEST = 6000, 1000  # examples: 100 clients x 60, and what accuracy is measured on
Run = tuple[Peer, int]  # a peer and its number of processes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], help="names of peers (their beginnings), instead of all"
    )
    parser.add_argument(
        "--engines",
        nargs="*",
        default=["eager", "auto"],
        help="of ours; default: the job's default",
    )
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10, help="rounds that are timed in each run")
    parser.add_argument("--warm", type=int, default=3, help="rounds before them")
    parser.add_argument(
        "--timeout", type=int, default=180, help="seconds after which a run is given up"
    )
    parser.add_argument(
        "--data", type=Path, default=HERE.parents[2] / "shared/data/fashion_mnist.h5"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache/hpcfed/peers", help="the environments"
    )
    parser.add_argument("--flute", default=simulators.FLUTE, help="where FLUTE is cloned from")
    return parser.parse_args()


def prepare(source: Path, target: Path) -> None:
    """Write the first examples of Fashion-MNIST as a file that all scripts read."""
    with h5py.File(source) as file:
        images = {"x_train": file["train/images"][:TRAIN], "x_test": file["test/images"][:TEST]}
        labels = {"y_train": file["train/labels"][:TRAIN], "y_test": file["test/labels"][:TEST]}
    np.savez(target, **images, **{name: y.astype(np.int64) for name, y in labels.items()})


def install(peer: Peer, options: argparse.Namespace) -> Path | None:
    """The peer's Python, or none, with a message, where it cannot be installed."""
    try:
        if peer.place == "flute":
            simulators.flute_source(options.cache, options.flute)
        return simulators.installed(peer, options.cache)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{peer.name}: skipped, not installed: {error}", file=sys.stderr)
        return None


class Measured:
    """All runs of all peers: rates in images per second, and why a peer was given up."""

    def __init__(self, given: argparse.Namespace, pythons: dict[Peer, Path], folder: Path):
        self.given, self.pythons, self.folder = given, pythons, folder
        wanted = [(peer, n) for n in given.processes for peer in pythons if n in peer.processes]
        self.rates: dict[Run, list[float]] = {run: [] for run in wanted}
        self.accuracy: dict[Run, float] = {}
        self.failed: dict[Run, str] = {}

    def turn(self, run: Run) -> None:
        """One run of one peer, unless it has failed before."""
        if run in self.failed:
            return
        rate = self.start(run)
        print(f"{run[0].name}, {run[1]} processes: {rate}", flush=True)
        if isinstance(rate, str) or rate["accuracy"] < LEARNT:
            self.failed[run] = rate if isinstance(rate, str) else f"did not learn: {rate}"
            return
        self.rates[run].append(rate["images_per_second"])
        self.accuracy[run] = rate["accuracy"]

    def start(self, run: Run) -> dict[str, float] | str:
        """What a run reports, or the end of what it said instead."""
        peer, processes = run
        folder = self.folder / f"{peer.place}{peer.engine}{processes}"
        words = [
            *simulators.command(peer, self.pythons[peer], processes),
            str(self.folder / "data.npz"),
            "--folder",
            str(folder),
            "--processes",
            str(processes),
            "--rounds",
            str(self.given.rounds),
            "--warm",
            str(self.given.warm),
            *(["--engine", peer.engine] if peer.engine else []),
        ]
        out = output(words, simulators.environment(self.given.cache), self.given.timeout)
        lines = [line for line in out.splitlines() if line.startswith('{"images_per_second"')]
        return json.loads(lines[-1]) if lines else f"no result: {out[-600:]}"

    def whole(self, processes: int) -> dict[str, tuple[list[float], Run]]:
        """Peers that ran in every pass with this number of processes."""
        runs = [run for run in self.rates if run[1] == processes and run not in self.failed]
        return {run[0].name: (self.rates[run], run) for run in runs}


def rows(measured: Measured) -> list[Row]:
    """Everyone over the raw loop, then ours over every peer."""
    measured_rows = []
    for n in measured.given.processes:
        complete, where = measured.whole(n), f"{n} process{'es' * (n > 1)}"
        raw = complete.pop(simulators.RAW.name, (None, None))[0]
        for name, (rates, run) in complete.items():
            details = {
                "images_per_second": statistics.median(rates),
                "accuracy": measured.accuracy[run],
            }
            if raw:
                measured_rows.append(
                    Row(f"{name} over the raw loop, {where}", ratio(rates, raw), details=details)
                )
        measured_rows += against(complete, where, goal=1.0 if n > 1 else None)
    return measured_rows


def against(
    complete: dict[str, tuple[list[float], Run]], where: str, goal: float | None
) -> list[Row]:
    """Ours over every peer."""
    ours = {name: rates for name, (rates, run) in complete.items() if run[0].own}
    others = {name: rates for name, (rates, run) in complete.items() if not run[0].own}
    return [
        Row(f"{mine} over {name}, {where}", ratio(ours[mine], rates), least=goal)
        for mine in ours
        for name, rates in others.items()
    ]


def main() -> None:
    options = arguments()
    if not options.data.exists():
        sys.exit(f"{options.data}: no such file; give Fashion-MNIST as HDF5 with --data")
    names = tuple(name.lower() for name in options.only) or ("",)
    chosen = [peer for peer in simulators.PEERS if peer.name.lower().startswith(names)]
    wanted = (simulators.RAW, *map(simulators.ours, options.engines), *chosen)
    pythons = {peer: python for peer in wanted if (python := install(peer, options))}
    with tempfile.TemporaryDirectory() as folder:
        prepare(options.data, Path(folder) / "data.npz")
        measured = Measured(options, pythons, Path(folder))
        turns = {
            f"{peer.name} {n}": partial(measured.turn, (peer, n)) for peer, n in measured.rates
        }
        interleaved(turns, options.passes, warm=0)
    for (peer, n), why in measured.failed.items():
        print(f"{peer.name}, {n} processes: skipped: {why}", file=sys.stderr)
    skipped = {f"{p.name}, {n}": why[-200:] for (p, n), why in measured.failed.items()}
    save("peers", rows(measured), whole=not options.only, skipped=skipped)


if __name__ == "__main__":
    main()
