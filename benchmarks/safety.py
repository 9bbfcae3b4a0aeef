"""What it costs a run without faults that nothing is lost: all of it switched on, over all of it
switched off.

`python benchmarks/safety.py [--against CHECKOUT] [--passes 5]`

Whole runs on two ranks take turns: without checkpoints and watchdog (off); with a checkpoint after
ten rounds, which is usual, the watchdog, and failing clients dropped (on); and on, with copies in
one another's memory after each round, where ranks may die (`mpirun --with-ft ulfm`). A time is that
between the lines that two rounds print, so all is in it that a round costs.  --against: a checkout
of an earlier hpcfed, whose run without checkpoints is timed too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from launch import ROOT, SETTINGS, mpirun
from paired import Row, ratio, save

RANKS, WARM, ROUNDS = 2, 4, 24  # clients move once, after two rounds
COMMON = "--checkpoint.minutes 0 --evaluate.every 4 --data.test_share 0.2 --overwrite"
JOBS = {
    "four architectures (0.4 MB to 1.6 MB), "
    "FedClassAvg": "--clients 12 --participation 0.5 --data.train_limit 1200",
    "cnn of 60 examples a client, FedAvg": "--algorithm.name fedavg --models.mix cnn --clients "
    "20 --participation 0.5 "
    "--data.train_limit 1200 --local.optimiser sgd",
}
OFF = "--checkpoint.every 0 --run.watchdog 0 --run.on_client_fault stop"
ON = "--checkpoint.every 10 --run.watchdog 600 --run.on_client_fault drop"
ULFM = ("--with-ft", "ulfm")


def main() -> None:
    options = arguments()
    rows = []
    for name, job in JOBS.items():
        with TemporaryDirectory(prefix="hpcfed-benchmark-") as folder:
            seconds = in_turn(job, Path(folder), options.passes, options.against)
        rows += compared(name, seconds)
    save("safety", rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--passes", type=int, default=5)
    return parser.parse_args()


def in_turn(job: str, folder: Path, passes: int, against: Path | None) -> dict[str, list[float]]:
    """Seconds of a round of each kind of run, by pass."""
    kinds = {
        "off": partial(timed, f"{job} {OFF}"),
        "on": partial(timed, f"{job} {ON}"),
        "copies": partial(timed, f"{job} {ON} --checkpoint.mirror true", options=ULFM),
    }
    if against:
        kinds["before"] = partial(timed, f"{job} --checkpoint.every 0", source=against.resolve())
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for i in range(passes):
        for kind in [*kinds][i % len(kinds) :] + [*kinds][: i % len(kinds)]:
            seconds[kind].append(kinds[kind](folder))
    return seconds


def timed(words: str, folder: Path, options: tuple[str, ...] = (), source: Path = ROOT) -> float:
    """Seconds of a round of this run, after the first ones."""
    argv = [
        mpirun(),
        *options,
        "-np",
        str(RANKS),
        sys.executable,
        "-m",
        "hpcfed.main",
        *COMMON.split(),
        *words.split(),
    ]
    argv += ["--rounds", str(ROUNDS), "--out", str(folder / "run")]
    environment = os.environ | SETTINGS | {"PYTHONPATH": str(source)}
    sizes = {}
    with subprocess.Popen(
        argv, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as job:
        for line in job.stdout:
            if line.startswith("round "):
                sizes[int(line.split()[1].split("/")[0])] = perf_counter()
    if job.returncode:
        raise SystemExit(f"{' '.join(argv)} ended with status {job.returncode}")
    return (sizes[ROUNDS - 1] - sizes[WARM]) / (ROUNDS - 1 - WARM)


def compared(name: str, seconds: Mapping[str, list[float]]) -> list[Row]:
    off, details = seconds["off"], {"seconds": dict(seconds)}
    rows = [
        Row(f"{name}: all on over all off", ratio(seconds["on"], off), most=1.03, details=details),
        Row(
            f"{name}: all on, with copies and ULFM, over all off",
            ratio(seconds["copies"], off),
            most=1.03,
        ),
    ]
    if "before" in seconds:
        rows.append(
            Row(
                f"{name}: all on over the version before",
                ratio(seconds["on"], seconds["before"]),
                most=1.03,
            )
        )
    return rows


if __name__ == "__main__":
    main()
