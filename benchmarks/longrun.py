"""Does a long run stay as it began? 2,000 rounds of a tiny job on 4 ranks: memory, open files,
seconds, file size.

`python benchmarks/longrun.py [ROUNDS] [RANKS]`: a few minutes. Whatever the run itself records
(seconds, largest resident size by rank) is read from its result file; resident size and open files
of every rank from /proc, each time that the run has finished another twentieth of its rounds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # to be run from anywhere

from benchmarks.launch import ROOT, SETTINGS, mpirun, ranks_of
from benchmarks.paired import Ratio, Row, ratio, save
from hpcfed.storage import names
from hpcfed.storage.results import load

JOB = [
    "--clients",
    "8",
    "--algorithm.name",
    "fedavg",
    "--models.mix",
    "mlp",
    "--models.d",
    "16",
    "--data.train_limit",
    "160",
    "--local.optimiser",
    "sgd",
]
SAMPLES = 20  # of a run; the first two are of its beginning
MIB = 2**20


class Sample(NamedTuple):
    """Measurements after a number of rounds: seconds since the start, bytes of the result file,
    and by rank bytes of memory and open files."""

    rounds: int
    seconds: float
    size: int
    resident: dict[int, int]
    files: dict[int, int]


def sample(leader: int, rounds: int, start: float, run: Path) -> Sample:
    ranks = dict(sorted(ranks_of(leader)))
    resident = {
        r: int((p / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for r, p in ranks.items()
    }
    results = names.results_file(run)
    size = results.stat().st_size if results.exists() else 0
    files = {r: len(list((p / "fd").iterdir())) for r, p in ranks.items()}
    return Sample(rounds, perf_counter() - start, size, resident, files)


def watched(ranks: int, rounds: int, run: Path) -> list[Sample]:
    """Run the job, and measure it each time that it has finished a number of rounds."""
    command = [mpirun(), "-np", str(ranks), sys.executable, "-m", "hpcfed.main", *JOB]
    command += ["--rounds", str(rounds), "--out", str(run)]
    every, start, samples = max(1, rounds // SAMPLES), perf_counter(), []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | SETTINGS,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as job:
        for line in job.stdout:
            t = int(line.split()[1].split("/")[0]) if line.startswith("round ") else 0
            if t and t % every == 0 and t < rounds:
                samples.append(sample(job.pid, t, start, run))
    if job.returncode:
        raise SystemExit(f"the run ended with status {job.returncode}")
    return samples


def rows(samples: list[Sample], run: Path) -> list[Row]:
    """What is held against the goals."""
    first, last = samples[1], samples[-1]
    grown = one(max(last.resident[r] / first.resident[r] for r in first.resident))
    peaks = load(run).columns["ranks/peak_bytes"]  # [T, R]
    peak = one(float((peaks[last.rounds - 1] / peaks[first.rounds - 1]).max()))
    seconds = load(run).columns["rounds/seconds"]
    part = len(seconds) // 4
    pace = ratio(seconds[-part:].tolist(), seconds[part // 4 : part // 4 + part].tolist())
    wall = one((last.seconds - samples[-6].seconds) / (samples[5].seconds - samples[0].seconds))
    half = samples[len(samples) // 2]
    slope = one(((last.size - half.size) / (last.rounds - half.rounds)) / (half.size / half.rounds))
    quarter = max(
        1, len(samples) // 4
    )  # the most in it: a file that is just being written counts as open
    files = one(max(most(samples[-quarter:], r) / most(samples[:quarter], r) for r in first.files))
    counts = {str(r): [s.files[r] for s in samples] for r in first.files}
    span = f"round {last.rounds} over round {first.rounds}"
    details = {
        "MiB": {str(r): [round(s.resident[r] / MIB, 1) for s in samples] for r in first.resident}
    }
    return [
        Row(f"resident size, of the rank that grew most, {span}", grown, 1.05, details=details),
        Row(f"largest resident size so far, {span}", peak, 1.05),
        Row("open files at most, last quarter over first", files, 1.0, details={"files": counts}),
        Row("seconds of a round, last quarter over first", pace, 1.1),
        Row(
            "seconds of all that a round takes, last quarter over first",
            wall,
            1.1,
            details={"seconds": [round(s.seconds, 2) for s in samples]},
        ),
        Row(
            "bytes a round adds to the results, second half over first",
            slope,
            1.1,
            details={"bytes": [s.size for s in samples]},
        ),
    ]


def most(samples: list[Sample], rank: int) -> int:
    """Open files of a rank, at most."""
    return max(s.files[rank] for s in samples)


def one(value: float) -> Ratio:
    return Ratio(value, value, value)


def main(rounds: int = 2000, ranks: int = 4) -> None:
    with TemporaryDirectory(prefix="hpcfed-bench-", dir=Path.cwd()) as folder:
        samples = watched(ranks, rounds, Path(folder) / "run")
        about: dict[str, Any] = {
            "rounds": rounds,
            "ranks": ranks,
            "job": JOB,
            "sampled_at": [s.rounds for s in samples],
        }
        save("longrun", rows(samples, Path(folder) / "run"), **about)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
