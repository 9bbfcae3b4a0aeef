"""Many clients: 1,000 with models and moments of their own that do not fit in memory, and up to a
million of FedAvg.

`python benchmarks/clients.py`: under 3 minutes; each case is a process of its own, and they take
turns round by round.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # to be run from anywhere

from benchmarks.paired import Ratio, Row, interleaved, ratio, save

DATA = Path(__file__).parents[2] / "shared" / "data"
GIB = 2**30
OWN = [
    "--algorithm.name",
    "local",
    "--clients",
    "1000",
    "--participation",
    "0.01",
    "--rounds",
    "1000",
    "--models.mix",
    "resnet8",
    "--models.d",
    "4096",
    "--local.keep_optimiser",
    "true",
    "--local.batch",
    "10",
    "--data.name",
    str(DATA / "cifar10.h5"),
    "--data.partition",
    "iid",
    "--evaluate.clients",
    "cohort",
    "--evaluate.before",
    "false",
]
MANY = [
    "--algorithm.name",
    "fedavg",
    "--models.mix",
    "logistic",
    "--data.name",
    "synthetic",
    "--data.partition",
    "natural",
    "--data.examples",
    "60",
    "--local.batch",
    "10",
    "--local.optimiser",
    "sgd",
    "--rounds",
    "1000",
    "--evaluate.clients",
    "cohort",
    "--evaluate.before",
    "false",
]
SIZES = {
    100: 1.0,
    10_000: 0.1,
    1_000_000: 0.001,
}  # clients, and the share of them in a cohort: 100 or 1,000


class Run:
    """A run in a separate process, which does one round per request."""

    def __init__(self, flags: list[str], fill: bool = False):
        start = perf_counter()
        command = [sys.executable, __file__, "run", json.dumps({"flags": flags, "fill": fill})]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.start = self.answer()
        self.start["seconds"] = perf_counter() - start
        self.rounds: list[dict[str, Any]] = []

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a run ended with status {self.process.wait()}")
        return json.loads(line)

    def step(self) -> None:
        print("round", file=self.process.stdin, flush=True)
        self.rounds.append(self.answer())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def total(self, name: str) -> float:
        """Over the rounds that were timed: all but the first."""
        return sum(done[name] for done in self.rounds[1:])

    @property
    def peak(self) -> float:
        """GiB, the largest resident size so far."""
        return self.rounds[-1]["peak"] / GIB


def child(flags: list[str], fill: bool) -> None:
    """The run: says when it can begin, then makes a round for each line that it reads."""
    from hpcfed.comm import Serial
    from hpcfed.config.load import load
    from hpcfed.engine.decide import world
    from hpcfed.engine.round_record import peak_bytes
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.setup import federation

    job = load(flags)
    rounds = Rounds(federation(job, Serial(), world(job, Serial())))
    if fill:
        grown(rounds)
    store = rounds.fed.store.states
    print(json.dumps({"peak": peak_bytes(), "away": len(store.away)}), flush=True)
    for _ in sys.stdin:
        before, start = store.waited, perf_counter()
        row, _ = rounds.step()
        done = {
            "seconds": perf_counter() - start,
            "waited": store.waited - before,
            "peak": peak_bytes(),
        }
        print(json.dumps(done | {"clients": int(row["clients/cohort"].sum())}), flush=True)
    store.close()


def grown(rounds: Any) -> None:
    """Give every client weights and moments, as if each had been in a cohort: those of the first
    that was.
    """
    rounds.step()
    store = rounds.fed.store
    parcel = store.parcel(min(store))
    for k in range(rounds.fed.K):
        memory = {
            name: {n: v.clone() for n, v in moments.items()}
            for name, moments in parcel["memory"].items()
        }
        store.put(k, parcel["weights"].clone(), memory)


def spilled(folder: Path, passes: int = 9) -> list[Row]:
    """Own models, a part of them on disk, against the same run with all of them in memory."""
    if not (DATA / "cifar10.h5").exists():
        print(f"skipped: 1,000 clients with their own models need {DATA / 'cifar10.h5'}")
        return []
    limits = {"disk": 0.5, "memory": 16.0}
    runs = {
        name: Run([*OWN, "--run.resident", str(gib), "--out", str(folder / name)], fill=True)
        for name, gib in limits.items()
    }
    seconds = timed(runs, passes)
    disk, memory = runs["disk"], runs["memory"]
    share = disk.total("waited") / disk.total("seconds")
    details = {
        "resident_gib": limits["disk"],
        "clients_on_disk": disk.start["away"],
        "peak_gib": disk.peak,
        "peak_gib_all_in_memory": memory.peak,
        "seconds_per_round": disk.total("seconds") / passes,
    }
    return [
        Row(
            "1,000 clients' own models on disk, over all in memory",
            ratio(seconds["disk"], seconds["memory"]),
            1.05,
            details=details,
        ),
        Row("share of the round that waits for the disk", Ratio(share, share, share), 0.05),
        Row(
            "peak memory of 1,000 clients with their own models, GiB",
            Ratio(disk.peak, disk.peak, disk.peak),
            4.0,
        ),
    ]


def populations(folder: Path, passes: int = 9) -> list[Row]:
    """The cost of a trained client, of the start, and of memory, by the number of clients."""
    runs = {
        str(K): Run(
            [
                *MANY,
                "--clients",
                str(K),
                "--participation",
                str(share),
                "--out",
                str(folder / str(K)),
            ]
        )
        for K, share in SIZES.items()
    }
    seconds = timed(runs, passes)
    each = {
        name: [s / run.rounds[0]["clients"] for s in seconds[name]] for name, run in runs.items()
    }
    rows = []
    for name, run in runs.items():
        details = {
            "start_seconds": run.start["seconds"],
            "peak_gib": run.peak,
            "cohort": run.rounds[0]["clients"],
            "milliseconds_per_client": 1000 * sorted(each[name])[passes // 2],
        }
        goal = 1.1 if name != "100" else None
        rows.append(
            Row(
                f"a trained client of {int(name):,}, over one of 100",
                ratio(each[name], each["100"]),
                goal,
                details=details,
            )
        )
    return rows


def timed(runs: dict[str, Run], passes: int) -> dict[str, list[float]]:
    """Seconds of the rounds, in turns."""
    steps: dict[str, Callable[[], None]] = {name: run.step for name, run in runs.items()}
    seconds = interleaved(steps, passes)
    for run in runs.values():
        run.end()
    return seconds


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        return child(**json.loads(sys.argv[2]))
    with TemporaryDirectory(prefix="hpcfed-bench-", dir=Path.cwd()) as folder:
        save("clients", [*spilled(Path(folder)), *populations(Path(folder))])


if __name__ == "__main__":
    main()
