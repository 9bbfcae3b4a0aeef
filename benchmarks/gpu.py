"""FedClassAvg of the paper's 20 clients on one GPU: engines, precisions and ranks against the naive
loop, and other simulators on the same card.

`python benchmarks/gpu.py [--passes 5] [--only paper all accuracy ranks peers] [--check]`

paper: 20 clients, 5 of each of the paper's four architectures, of unequal sizes (log-normal, 640
examples in the mean) with last batches of any size, batches of 64, two views of 3x32x32, noise;
`naive.py` has the loop, once in float32 and once with torch's defaults and cuDNN's benchmark mode.
all: the same with ResNet-18 everywhere, of which all is averaged. All engines and precisions take
turns with the naive loop in float32, in one process whose memory has to fit on the GPU at once; the
one with torch's defaults follows. A graphed side that has captured nothing ends the benchmark with
an error. ranks: several on a GPU (time-sliced, unless an MPS server runs), each a run of its own;
clients are placed by what they were measured to take.
peers: FedAvg by pfl-research and BlazeFL, if this Python can import them, on pfl-research's task:
1,000 clients with 50 images of 3x32x32, 50 in a round, batches of 10, SGD 0.1.

Without a GPU nothing is measured; --check runs every part on the CPU with small models, few
examples and a pretended capture, and writes nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import COLOUR, QUIET, Case
from launch import ROOT, SETTINGS, mpirun, on_ranks
from naive import Naive
from paired import Ratio, Row, interleaved, ratio, save, table
from pretend import capture_on_cpu
from side import SIDES, Side, free
from torch import nn

from hpcfed.comm.serial import Serial
from hpcfed.config.load import load
from hpcfed.engine.decide import world
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation
from hpcfed.machine import devices
from hpcfed.storage.results import load as results
from hpcfed.training.engines import OFTEN

PAPER = Case(
    "resnet18,shufflenetv2,googlenet,alexnet",
    nn.Module,
    COLOUR,
    clients=20,
    n=640,
    batch=64,
    optimiser="adam",
    lr=1e-3,
    flags=("--algorithm.name", "fedclassavg", "--local.augment", "simclr"),
    partition="quantity",
)
SMALL = replace(PAPER, model="fedhenn-1,mlp", clients=2, n=10, batch=4)
LEAST = {"graphed": 5.0}  # goals: times the naive loop,
RATE = 50_000.0  # examples a second with the fastest engine and precision,
PEERS = 5.0  # and times pfl-research on its own task
PARTS = ("paper", "all", "accuracy", "ranks", "peers")
# of a run on several ranks: in the first rounds ranks record and capture, and clients move to where
# their measured costs place them, where sizes of last batches are captured anew; the others count
WARM, ROUNDS = 4 + OFTEN, 5
DIGITS = (
    "--data.name",
    "digits",
    "--algorithm.name",
    "fedclassavg",
    "--models.mix",
    "cnn,mlp,fedhenn-3,fedhenn-5",
)


@dataclass(frozen=True)
class Setting:
    """What is measured, and how much of it."""

    case: Case
    kind: str  # of run.device
    passes: int
    ranks: tuple[int, ...]
    rounds: int  # of the run whose accuracy is compared
    task: str  # of the peers; see peers/task.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--check", action="store_true", help="run every part on the CPU, small")
    options = parser.parse_args()
    gc.freeze()  # what was imported is no garbage: `free` is not to look at it each time
    if options.check:
        rows, more = measure(Setting(SMALL, "cpu", 1, (1, 2), 2, "toy"), options.only)
        print(table(rows), more, sep="\n")
    elif not torch.cuda.is_available():
        print("skipped: torch sees no GPU here (--check runs every part small, on the CPU)")
    else:
        setting = Setting(PAPER, "cuda", options.passes, (1, 2, 4), 20, "cifar10")
        rows, more = measure(setting, options.only)
        save("gpu", rows, whole=set(options.only) == set(PARTS), **more)


def measure(setting: Setting, parts: Sequence[str]) -> tuple[list[Row], dict[str, Any]]:
    """All rows of these parts, and what is no ratio."""
    rows: list[Row] = []
    more: dict[str, Any] = {}
    sides = whole(setting.case)
    with capture_on_cpu() if setting.kind == "cpu" else nullcontext():
        if "paper" in parts:
            rows += engines(setting, setting.case, "the paper's models", more)
        if "all" in parts:
            rows += engines(setting, sides, "one model, all of it averaged", more, "all")
        if "accuracy" in parts:
            rows += accuracies(setting.kind, setting.rounds)
    free()
    with tempfile.TemporaryDirectory() as folder:
        if "ranks" in parts:
            rows += shared(setting, Path(folder), more)
        if "peers" in parts:
            rows += beside(setting, more)
    return rows, more


def whole(case: Case) -> Case:
    """The same with one model, of which all is averaged."""
    return replace(
        case, model=case.model.split(",")[0], flags=(*case.flags, "--algorithm.share", "all")
    )


def engines(
    setting: Setting, case: Case, title: str, more: dict[str, Any], share: str = "head"
) -> list[Row]:
    """The rows of all engines and precisions, which take turns; `more` gets what is no ratio."""
    free()
    sides = {
        name: Side(case, setting.kind, name)
        for name, precision in SIDES.items()
        if setting.kind == "cuda" or precision != "tf32"
    }
    eager = sides["eager"]
    naive, loose = (
        Naive(case, eager.device, eager.data(), share, defaults) for defaults in (False, True)
    )
    first = interleaved(sides, passes=1, warm=0)  # with recordings and captures
    same = eager.weights() == sides["graphed"].weights()
    for name, side in sides.items():
        for _ in range(OFTEN if name != "eager" else 0):  # until last batches are captured too
            side()
    seconds = interleaved({"naive": naive.round, **sides}, setting.passes)
    print(title, first, seconds, flush=True)  # should anything fail from here on
    # apart, for cuDNN's benchmark mode takes minutes to try its kernels for each size of a batch
    seconds |= interleaved({"naive, torch's defaults": loose.round}, setting.passes)
    print(title, seconds, flush=True)
    del naive, loose
    notes = more[title] = {
        "device": devices.describe(eager.device),
        "seconds": seconds,
        "seconds of the first round": first,
        "bytes of the GPU's memory, all together": held(eager.device),
        "graphs": {
            name: side.check_captures() for name, side in sides.items() if side is not eager
        },
        "eager and graphed have the same bits": same,
    }
    # what follows trains on
    notes["peak bytes of a client's training"] = eager.peaks()
    notes["flop of an example as computed"] = flop = eager.flop_by_example()
    rows: list[Row] = []
    for name, side in sides.items():
        rows += speed(side, f"{title}: naive loop over hpcfed, {name}", name, seconds, flop)
    for name, side in sides.items():
        rows += replays(side, f"{title}, {name}") if side is not eager else ()
    return rows


def held(device: torch.device) -> int:
    """Most bytes of a GPU that this process has held; 0 on a CPU."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0


def speed(
    side: Side, what: str, name: str, seconds: dict[str, list[float]], flop: dict[str, float]
) -> Iterator[Row]:
    """The naive loop over this side, and its throughput. flop: of an example by architecture."""
    fed, median = side.fed, float(np.median(seconds[name]))
    work = sum(n * flop[a] for n, a in zip(fed.sizes, fed.architectures, strict=True))
    rate, peak = sum(fed.sizes) / median, side.peak_flop_rate
    details = {
        "seconds": median,
        "naive": float(np.median(seconds["naive"])),
        "flop/s": work / median,
        "examples/s": rate,
        "of peak": work / median / peak if peak else None,
    }
    yield Row(what, ratio(seconds["naive"], seconds[name]), least=LEAST.get(name), details=details)
    loose = seconds["naive, torch's defaults"]
    details = {"naive": float(np.median(loose))}
    yield Row(f"{what}, naive with torch's defaults", ratio(loose, seconds[name]), details=details)
    if name == "graphed tf32":
        yield Row(f"{what}: examples a second over {RATE:,.0f}", one(rate / RATE), least=1.0)


def replays(side: Side, what: str) -> Iterator[Row]:
    """Of a client's training, the share in which its graph runs; mean over architectures."""
    steps = side.steps(times=50 if side.device.type == "cuda" else 2)
    share = float(np.mean([step["share of training"] for step in steps.values()]))
    yield Row(f"{what}: share of training in which graphs run", one(share), details=steps)


def accuracies(kind: str, rounds: int) -> Iterator[Row]:
    """A short run on digits with each engine: mean accuracy over clients."""
    rates = {}
    for engine in ("eager", "graphed"):
        flags = ["--run.device", kind, "--rounds", str(rounds), "--training.engine", engine]
        few = ["--data.train_limit", "200"] if kind == "cpu" else []
        job = load([*DIGITS, *flags, *few], environ={})
        going = started(job)
        rates[engine] = [going.step()[0] for _ in range(rounds)][-1]["clients/accuracy"].mean()
    yield Row(
        "accuracy on digits, graphed over eager",
        one(rates["graphed"] / rates["eager"]),
        details=rates,
    )


def started(job: Any) -> Rounds:
    return Rounds(federation(job, Serial(), world(job, Serial())))


def shared(setting: Setting, folder: Path, more: dict[str, Any]) -> Iterator[Row]:
    """Several ranks on one GPU against one; whether they have the same bits goes into `more`.

    Clients are placed by cost, as measured in the first rounds (`run.rebalance`).
    """
    runs: dict[int, Any] = {}
    for n in setting.ranks if launchable() else setting.ranks[:1]:
        flags = [
            *setting.case.words,
            *QUIET,
            *("--rounds", str(WARM + ROUNDS)),
            *("--run.device", setting.kind),
            *("--run.ranks_per_gpu", str(max(setting.ranks))),
            *("--run.rebalance", "2"),
            *("--training.engine", "graphed" if setting.kind == "cuda" else "eager"),
            *("--overwrite", "--quiet", "--out", str(folder / str(n))),
        ]
        on_ranks(n, "-m", "hpcfed.main", *flags)
        runs[n] = results(folder / str(n)).columns
    more["bytes of the GPU's memory by rank"] = {
        n: c["ranks/peak_device_bytes"][-1].tolist() for n, c in runs.items()
    }
    more["losses do not depend on ranks"] = all(
        np.array_equal(c["clients/train_loss"], runs[1]["clients/train_loss"])
        for c in runs.values()
    )
    seconds = {n: c["rounds/seconds"][WARM:-1] for n, c in runs.items()}  # the last is evaluated
    for n in [n for n in runs if n > 1]:
        yield Row(
            f"seconds of a round: 1 rank / {n} ranks on one GPU", ratio(seconds[1], seconds[n])
        )


def beside(setting: Setting, more: dict[str, Any]) -> Iterator[Row]:
    """hpcfed over other simulators on pfl-research's task, each in a process of its own; who is not
    there is told in `more`.
    """
    peers = more["peers"] = {}
    with tempfile.TemporaryDirectory() as folder:
        # by default its clients train as one on a GPU: whether that pays shows beside the other
        ours = peers["hpcfed"] = peer(setting, "hpcfed_run.py", 1, Path(folder))
        engine = "graphed" if setting.kind == "cuda" else "eager"
        peers[f"hpcfed, {engine}"] = peer(
            setting, "hpcfed_run.py", 1, Path(folder), "--engine", engine
        )
        others = (("pfl-research", "pfl", 1), ("BlazeFL", "blazefl", 1), ("pfl-research", "pfl", 5))
        for name, module, n in others:
            if not find_spec(module):
                peers[name] = f"skipped: this Python has no module {module}"
                continue
            what = f"{name}, {n} process{'es' * (n > 1)}"
            rates = peers[what] = peer(setting, f"{module}_run.py", n, Path(folder))
            if isinstance(ours, float) and isinstance(rates, float):
                yield Row(
                    f"images a second, hpcfed with 1 process over {what}",
                    one(ours / rates),
                    least=PEERS if module == "pfl" else None,
                )


def peer(setting: Setting, script: str, processes: int, folder: Path, *flags: str) -> float | str:
    """Images a second of a script of `peers/` on the task, or the end of what it said instead."""
    place = Path(__file__).parent / "peers"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    many = launcher if processes > 1 else []
    words = [str(place / script), "made", "--folder", str(folder / script)]
    done = subprocess.run(
        [sys.executable, *many, *words, "--processes", str(processes), "--rounds", "5", *flags],
        env=os.environ
        | SETTINGS
        | {
            "PEERS_TASK": setting.task,
            "PEERS_DEVICE": setting.kind,
            "PYTHONPATH": f"{place}{os.pathsep}{ROOT}",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"images_per_second"')]
    rate = json.loads(lines[-1])["images_per_second"] if lines else done.stderr[-1000:]
    print(script, processes, *flags, rate, flush=True)
    return rate


def launchable() -> bool:
    """Whether several ranks can be started here; says why not."""
    try:
        return bool(mpirun())
    except RuntimeError as why:
        print(f"skipped: several ranks ({why})")
        return False


def one(value: float) -> Ratio:
    return Ratio(float(value), float(value), float(value))


if __name__ == "__main__":
    main()
