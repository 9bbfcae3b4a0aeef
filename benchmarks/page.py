"""The page of many runs: 20 runs of 500 rounds and 100 clients; seconds to make it, bytes, and how
a browser opens it.

`python benchmarks/page.py [--runs 20] [--rounds 500] [--clients 100] [--passes 3]`

The runs are made up, with numbers that compress badly (every accuracy, loss and time has noise of
its own), and written as hpcfed writes them. The browser is Chromium without a GPU, driven by
Selenium (Debian: chromium, chromium-driver); its seconds are from the address to the page that has
drawn itself.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
from paired import Row, ratio, save

from hpcfed.core.rng import stream
from hpcfed.storage.columns import PHASES
from hpcfed.storage.results import Results

CLASSES, RANKS = 10, 8
MODELS = ("resnet18", "shufflenetv2", "googlenet", "alexnet")
MEGA = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in (("runs", 20), ("rounds", 500), ("clients", 100), ("passes", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [made(Path(folder), i, options.rounds, options.clients) for i in range(options.runs)]
        rows = measured(runs, Path(folder), options.passes)
    save("page", rows, runs=options.runs, rounds=options.rounds, clients=options.clients)


def measured(runs: list[Path], folder: Path, passes: int) -> list[Row]:
    page = folder / "report.html"
    command = [sys.executable, "-m", "hpcfed.cli", "report", *map(str, runs), "-o", str(page)]
    making = [
        timed(lambda: subprocess.run(command, check=True, capture_output=True))
        for _ in range(passes)
    ]
    size = page.stat().st_size / MEGA
    return [
        row("seconds to make the page", making, most=30),
        row("its size in MB", [size], most=10),
        *opened(page, folder, passes),
    ]


def opened(page: Path, folder: Path, passes: int) -> list[Row]:
    """Seconds in a browser: until the page is drawn, until another x is, and until 100 clients of
    one run are.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.browser.chromium import Browser

    browser = Browser(folder / "browser")
    next_frame = "await new Promise(done => requestAnimationFrame(() => setTimeout(done)));"

    def act(script: str) -> Callable[[], object]:
        return lambda: browser.do(f"return (async () => {{ {script} {next_frame} }})()")

    try:
        opening = [timed(lambda: browser.open(page)) for _ in range(passes)]
        over = [timed(act(f"chooseX('{x}');")) for x in ("bytes", "wall", "round")]
        clients = [
            timed(act(f"await chooseRun({i}); clientsTable.tickAll(true); await drawClients();"))
            for i in range(passes)
        ]
        zoom = [timed(act(f"setX({i}, {100 + i});")) for i in range(passes)]
    finally:
        browser.close()
    return [
        row("seconds to open it in Chromium", opening),
        row("seconds to draw over another x", over),
        row("seconds to draw all clients of a run", clients),
        row("seconds to zoom with them", zoom),
    ]


def timed(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def row(what: str, values: list[float], most: float | None = None) -> Row:
    """A number as a ratio to one of its unit."""
    return Row(
        what,
        ratio(values, [1.0] * len(values)),
        most=most,
        details={"values": [round(v, 3) for v in values]},
    )


def made(folder: Path, i: int, rounds: int, clients: int) -> Path:
    """A run whose clients learn at different speeds; all of them report in each round, for that
    takes most room.
    """
    run, g, K = folder / f"run-{i:02d}", stream(0, "page", i), clients
    job = {
        "algorithm": {"name": ("fedavg", "fedprox", "fedclassavg", "fedproto")[i % 4]},
        "clients": K,
        "seed": i // 4,
        "data": {"name": "cifar10", "partition": "dirichlet", "alpha": 0.5},
        "rounds": rounds,
    }
    header = {
        "job": job,
        "ranks": RANKS,
        "classes": [str(c) for c in range(CLASSES)],
        "ended": "finished",
        "architectures": [MODELS[k % 4] for k in range(K)],
        "placement": [k % RANKS for k in range(K)],
    }
    sizes = {"train_sizes": g.integers(100, 900, K), "test_sizes": g.integers(20, 200, K)}
    results = Results(run, header, {"label_counts": g.integers(0, 90, (K, CLASSES)), **sizes})
    speed = g.uniform(0.005, 0.02, K)
    for t in range(rounds):
        results.append(one_round(g, t, speed))
    results.finish()
    return run


def one_round(g: np.random.Generator, t: int, speed: np.ndarray) -> dict[str, np.ndarray | float]:
    """The record of a round as engine/round_record.py has it."""
    K, level = len(speed), 0.9 - 0.8 * np.exp(-speed * t)
    same = {"examples": 500, "epochs": 1.0, "down": 20520, "up": 20520, "cohort": True}
    noise = lambda: g.normal(0, 0.01, K)  # noqa: E731
    return {
        **{f"clients/{name}": np.full(K, value) for name, value in same.items()},
        "clients/accuracy": level + noise(),
        "clients/accuracy_before": level + noise() - 0.02,
        "clients/loss": 2.3 - 2 * level + noise(),
        "clients/train_loss": 2.3 - 2 * level + noise(),
        "clients/seconds": 3 + noise(),
        "clients/lost": g.random(K) < 0.001,
        **{f"ranks/{phase}": g.uniform(0, 2, RANKS) for phase in PHASES},
        "rounds/seconds": float(g.uniform(9, 11)),
        "rounds/virtual_seconds": 60.0 * (t + 1),
    }


if __name__ == "__main__":
    main()
