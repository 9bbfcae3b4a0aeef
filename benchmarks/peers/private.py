"""Central differential privacy beside pfl-research's: noise for the same epsilon, accuracy, seconds
of a round, on one process.

    python benchmarks/peers/private.py --pfl ENVIRONMENT/bin/python [--seeds 3]   # half an hour

The task is in `private_task.py`; pfl-research runs in its own environment (`requirements/pfl.txt`).
Both take turns. Written to results/private/pfl.json: for each side, with privacy and without, by
seed, the accuracy of the global model on 1,000 of CIFAR-10's test images after the last round; the
noise multiplier that its accountant finds for epsilon 8, delta 1e-5; the median seconds of a round.

pfl-research draws its weights and batches from global generators, which are not seeded here.
Cohorts differ: hpcfed draws Poisson cohorts, which the account of both assumes; pfl-research draws
cohorts of a fixed size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import private_task as task

from hpcfed.core import rng
from hpcfed.storage.results import load

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "results" / "private" / "pfl.json"
DATA = HERE.parents[2] / "shared" / "data" / "cifar10.h5"
KINDS = ("plain", "private")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pfl", required=True, help="the Python of an environment with pfl")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "cifar10.npz"
        prepare(options.data, file, options.seeds)
        for seed in range(options.seeds):
            for kind in KINDS:
                theirs = pfl(options.pfl, file, seed, kind)
                for side, result in (
                    ("pfl-research", theirs),
                    ("hpcfed", ours(file, Path(folder), seed, kind)),
                ):
                    runs.setdefault(f"{side}, {kind}", []).append(result)
                    print(seed, side, kind, result, flush=True)
                write(runs)


def prepare(source: Path, target: Path, seeds: int) -> None:
    """Write CIFAR-10 as a file that both sides read, and pfl-research's clients and cohorts.

    order: [seeds, n], examples of the clients, one after the other.  cohorts: [seeds, T, m].
    """
    with h5py.File(source) as file:
        arrays = {
            f"{name}_{split}": file[f"{split}/{key}"][:]
            for split in ("train", "test")
            for name, key in (("x", "images"), ("y", "labels"))
        }
    if arrays["x_train"].shape[-1] == 3:
        arrays |= {
            name: np.ascontiguousarray(x.transpose(0, 3, 1, 2))
            for name, x in arrays.items()
            if name.startswith("x")
        }
    streams = [rng.stream(seed, "pfl-research") for seed in range(seeds)]
    order = [g.permutation(len(arrays["y_train"])) for g in streams]
    cohorts = [
        [g.choice(task.CLIENTS, task.COHORT, replace=False) for _ in range(task.ROUNDS)]
        for g in streams
    ]
    np.savez(target, order=np.array(order), cohorts=np.array(cohorts), **arrays)


def pfl(python: str, file: Path, seed: int, kind: str) -> dict[str, float]:
    words = [python, str(HERE / "private_pfl.py"), str(file), str(seed), kind]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment())
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def ours(file: Path, folder: Path, seed: int, kind: str) -> dict[str, float]:
    """Return the numbers of a run of hpcfed."""
    job: dict[str, Any] = {
        "rounds": task.ROUNDS,
        "clients": task.CLIENTS,
        "participation": task.COHORT / task.CLIENTS,
        "seed": seed,
        "algorithm.name": "fedavg",
        "algorithm.weighting": "uniform",
        "models.mix": "private_task:body",
        "models.d": 512,
        "models.relu_head": "false",
        "data.name": file,
        "data.partition": "iid",
        "local.optimiser": "sgd",
        "local.lr": task.LR,
        "local.batch": task.BATCH,
        "local.epochs": 1,
        "evaluate.every": task.ROUNDS,
        "evaluate.common": "true",
        "out": folder / f"{kind}-{seed}",
        "quiet": "true",
    }
    if kind == "private":
        job |= {
            "privacy.by": "central",
            "privacy.clip": task.CLIP,
            "privacy.epsilon": task.EPSILON,
            "privacy.delta": task.DELTA,
        }
    words = [word for name, value in job.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "hpcfed.main", *words], check=True, env=environment())
    run = load(job["out"])
    seconds = run.column("rounds/seconds")[2:-1]
    return {
        "accuracy": float(run.column("rounds/accuracy_common")[-1]),
        "noise": run.header["privacy"]["noise"] if kind == "private" else 0.0,
        "seconds": float(statistics.median(seconds)),
    }


def environment() -> dict[str, str]:
    path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}


def write(runs: dict[str, list[dict[str, float]]]) -> None:
    """Write all runs so far."""
    OUT.parent.mkdir(parents=True, exist_ok=True)
    setting = {
        name.lower(): getattr(task, name)
        for name in ("CLIENTS", "EXAMPLES", "COHORT", "BATCH", "ROUNDS", "LR", "CLIP", "EPSILON")
    }
    text = json.dumps({"setting": setting | {"delta": task.DELTA}, "runs": runs}, indent=1)
    OUT.write_text(text + "\n")


if __name__ == "__main__":
    main()
