"""Strong and weak scaling of one job: seconds of a round on 1, 2, 4, ... ranks by phase,
efficiency, parallel fraction.

    python benchmarks/scaling.py                                         # this machine's cores, by
    mpirun python benchmarks/scaling.py JOB.toml --launcher 'srun -n {ranks}'   # in a Slurm
    allocation: up to SLURM_NTASKS python benchmarks/scaling.py --ranks 1 2 4 8 --passes 5 --name
    mine --field '--models.mix resnet18'

Strong: --clients in all. Weak: --per-rank clients on each rank. Each client has --examples
examples. The numbers of ranks take turns, --passes times; what counts is the ratio to one rank's
round of the same pass. Seconds are those of the result files, of the rounds after clients have
moved to other ranks by measured cost.

Parallel fraction p, by least squares over the ranks that had a core (or GPU) of their own: strong
by Amdahl's law, T_R / T_1 = (1 - p) + p / R; weak by Gustafson's, R T_1 / T_R = (1 - p) + p R.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # to be run from anywhere

from benchmarks.launch import ROOT, SETTINGS, mpirun
from benchmarks.paired import machine, ratio
from hpcfed.storage.columns import PHASES
from hpcfed.storage.results import load

RESULTS = ROOT / "benchmarks" / "results"
FIELDS = [
    "--algorithm.name",
    "fedavg",
    "--models.mix",
    "cnn",
    "--local.epochs",
    "2",
]  # without a job file
WARM = 2  # rounds that measure, after which clients move; they do not count
Point = dict[str, Any]  # one number of ranks in one mode


def options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "job", nargs="?", help="a job file; default: FedAvg of a small CNN on digits"
    )
    parser.add_argument(
        "--modes", nargs="+", default=["strong", "weak"], choices=["strong", "weak"]
    )
    parser.add_argument(
        "--ranks", nargs="+", type=int, help="default: 1, 2, 4, ... up to SLURM_NTASKS, or 8"
    )
    parser.add_argument("--launcher", help="command with {ranks}; default: mpirun -np {ranks}")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--per-rank", type=int, default=4)
    parser.add_argument("--examples", type=int, default=40, help="training examples per client")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds per run")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument(
        "--field", action="append", default=[], help="a field of the job, '--name value ...'"
    )
    parser.add_argument(
        "--name", default="scaling", help="name of the folder in benchmarks/results"
    )
    return parser.parse_args(words)


def main() -> None:
    arguments = options()
    ranks = arguments.ranks or doubled(int(os.environ.get("SLURM_NTASKS", 8)))
    cases = [(mode, R) for mode in arguments.modes for R in sorted({1, *ranks})]
    runs: dict[tuple[str, int], list[Point]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(
        dir=Path.cwd(), prefix="scaling-"
    ) as folder:  # that all nodes see
        for i in range(arguments.passes):
            for mode, R in cases[i % len(cases) :] + cases[: i % len(cases)]:
                print(
                    f"pass {i + 1} of {arguments.passes}: {mode}, {R} ranks",
                    file=sys.stderr,
                    flush=True,
                )
                runs[mode, R].append(
                    measure(
                        command(arguments, mode, R, folder),
                        Path(folder) / "run",
                        arguments.launcher,
                    )
                )
    write(
        arguments,
        {
            mode: points(mode, {R: runs[m, R] for m, R in cases if m == mode})
            for mode in arguments.modes
        },
    )


def doubled(most: int) -> list[int]:
    """1, 2, 4, ... and the most itself."""
    return sorted({*(2**i for i in range(most.bit_length())), most})


def command(options: argparse.Namespace, mode: str, ranks: int, folder: str) -> list[str]:
    """The command line of one run."""
    clients = options.clients if mode == "strong" else options.per_rank * ranks
    launcher = shlex.split((options.launcher or f"{mpirun()} -np {{ranks}}").format(ranks=ranks))
    fields = [options.job] if options.job else FIELDS
    fixed = [
        "--clients",
        clients,
        "--data.train_limit",
        clients * options.examples,
        "--rounds",
        WARM + options.rounds,
        "--run.rebalance",
        WARM,
        "--checkpoint.every",
        1,
        "--evaluate.every",
        1,
        "--data.partition",
        "iid",
        "--overwrite",
        "--quiet",
        "--out",
        Path(folder) / "run",
    ]
    words = [word for field in options.field for word in shlex.split(field)]
    return [*launcher, sys.executable, "-m", "hpcfed.main", *fields, *words, *map(str, fixed)]


def measure(words: list[str], run: Path, launcher: str | None = None) -> Point:
    """One run: seconds of a round and, by phase, of its ranks on average; medians over the rounds
    that count.
    """
    env = {"PYTHONPATH": str(ROOT), **({} if launcher else SETTINGS), **os.environ}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        sys.exit(f"{shlex.join(words)} ended with {done.returncode}\n{done.stderr[-3000:]}")
    record = load(run)
    spent = {phase: record.columns[f"ranks/{phase}"][WARM:].mean(1) for phase in PHASES}  # [T]
    # which comes between rounds
    seconds = record.columns["rounds/seconds"][WARM:] + spent["checkpoint"]
    spent["other"] = seconds - sum(spent.values())
    hardware, threads = record.header["hardware"], record.header["job"]["run"]["threads"]
    room = (
        hardware["cores"] * hardware["nodes"] >= threads * record.header["ranks"]
        or hardware["device"] != "cpu"
    )
    parts = {phase: float(np.median(values)) for phase, values in spent.items()}
    return {
        "seconds": float(np.median(seconds)),
        "parts": parts,
        "room": room,
        "nodes": hardware["nodes"],
        "processor": hardware["device"],
    }


def points(mode: str, runs: dict[int, list[Point]]) -> dict[str, Any]:
    """One mode as JSON: a point for each number of ranks, and the parallel fraction."""
    measured = []
    for R, passes in runs.items():
        slower = ratio(
            [p["seconds"] for p in runs[1]], [p["seconds"] for p in passes]
        )  # T_1 / T_R, by pass
        share = R if mode == "strong" else 1
        measured.append(
            {
                "ranks": R,
                "nodes": passes[0]["nodes"],
                "room": passes[0]["room"],
                "processor": passes[0]["processor"],
                "seconds": statistics.median(p["seconds"] for p in passes),
                "parts": {
                    n: statistics.median(p["parts"][n] for p in passes) for n in passes[0]["parts"]
                },
                "efficiency": [value / share for value in slower],
            }
        )
    return {"points": measured, "parallel_fraction": parallel(mode, measured)}


def parallel(mode: str, points: Sequence[Point]) -> float | None:
    """p of Amdahl's or Gustafson's law through the points with cores of their own; None with one
    rank only.
    """
    pairs = [(p["ranks"], p["efficiency"][0]) for p in points if p["room"] and p["ranks"] > 1]
    if mode == "strong":  # 1 / (R e) = (1 - p) + p / R
        lines = [(1 - 1 / R, 1 / (R * e) - 1 / R) for R, e in pairs]
    else:  # R e = (1 - p) + p R
        lines = [(R - 1, R - R * e) for R, e in pairs]
    weight = sum(x * x for x, _ in lines)
    return 1 - sum(x * y for x, y in lines) / weight if weight else None


def write(options: argparse.Namespace, modes: dict[str, Any]) -> None:
    """JSON, table and pictures in benchmarks/results/NAME."""
    from benchmarks.scalingplot import draw

    folder = RESULTS / options.name
    folder.mkdir(parents=True, exist_ok=True)
    asked = {name: value for name, value in vars(options).items() if name != "launcher"}
    content = {"benchmark": "scaling", "machine": machine(), "asked": asked, "modes": modes}
    (folder / "scaling.json").write_text(json.dumps(content, indent=1) + "\n")
    text = "\n".join(table(mode, points) for mode, points in modes.items())
    (folder / "table.md").write_text(text)
    for mode, points in modes.items():
        draw(mode, points, folder / f"{mode}.png")
    print(text)


def table(mode: str, points: dict[str, Any]) -> str:
    """One mode in Markdown."""
    names = list(points["points"][0]["parts"])
    lines = [
        f"## {mode.capitalize()} scaling, seconds of a round",
        "",
        f"| ranks | nodes | round | {' | '.join(names)} | efficiency (quartiles) |",
        "|" + "---|" * (len(names) + 4),
    ]
    for p in points["points"]:
        parts = " | ".join(f"{p['parts'][name]:.3g}" for name in names)
        median, low, high = p["efficiency"]
        shared = "" if p["room"] else " *"
        lines.append(
            f"| {p['ranks']}{shared} | {p['nodes']} | {p['seconds']:.3g} | {parts} | {median:.2f} "
            f"({low:.2f} to {high:.2f}) |"
        )
    law, p = "Amdahl" if mode == "strong" else "Gustafson", points["parallel_fraction"]
    note = "" if p is None else f"Parallel fraction ({law}, least squares): {p:.3f}. "
    return "\n".join(
        [*lines, "", f"{note}* more ranks than cores: they share them, and are not in the fit.", ""]
    )


if __name__ == "__main__":
    main()
