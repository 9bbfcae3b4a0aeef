"""Does the federation help? The study of design.md.

`python benchmarks/study/study.py [--hours N] [--cells NAME ...] [--methods NAME ...]
[--seeds N] [--side-by-side N]` does the runs that have no row in results/study yet, the most
valuable first, and writes the tables. Each run leaves one line in the file of its cell; stopped,
the same command continues. `--plan` prints core-hours by cell and what fits into `--hours`;
`--measure` measures the seconds that it rests on. `--drop` removes rows that are no longer of the
plan, as of matched baselines that were changed. `--tables` writes the tables alone.
`--scale gpu` does all this for the study at the papers' size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forks
import numpy as np
import studycost
import studyplan
import studytables
from studyplan import HERE, PLAN, Task, methods_of, read, ready, rows_of, write_job

from hpcfed.core.exit_status import DONE, WRONG
from hpcfed.results import summary
from hpcfed.storage.results import load

sys.path.append(str(HERE.parent))

import rowfiles
from runs import FOLDER, short_commit

HOUR = 3600.0
PLACE = FOLDER / "study"  # of runs that are not done


def main() -> None:
    options = arguments()
    if options.plan:
        print_plan(read(list(PLAN["cells"])), options)
    elif options.measure:
        measure(options.cells, options.methods)
    elif options.drop:
        drop(options.cells)
    else:
        if not options.tables:
            work(options)
        studytables.write(read(list(PLAN["cells"])))


def arguments() -> argparse.Namespace:
    scale = argparse.ArgumentParser(add_help=False)
    scale.add_argument("--scale", choices=["gpu"], help="another size than this study's")
    if name := scale.parse_known_args()[0].scale:
        studyplan.use_scale(name)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], parents=[scale])
    parser.add_argument("--hours", type=float, default=16.0, help="core-hours of this call")
    parser.add_argument("--cells", nargs="+", default=[*PLAN["cells"]], choices=PLAN["cells"])
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=0, help="only so many; default: all")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--drop", action="store_true")
    parser.add_argument("--tables", action="store_true")
    return parser.parse_args()


def print_plan(rows: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the core-hours of each cell's missing runs, and the cells that fit into the limit."""
    total, limit = 0.0, options.hours
    print(f"{'cell':28}{'methods':>8}{'hours':>8}{'sum':>8}  fits into {limit:g} h")
    for cell in options.cells:
        missing = studycost.hours(rows, cell, options.methods, options.seeds)
        total += missing
        fits = "yes" if total <= limit else "no"
        count = len(set(options.methods or methods_of(cell)) & set(methods_of(cell)))
        print(f"{cell:28}{count:>8}{missing:>8.1f}{total:>8.1f}  {fits}")


def drop(cells: Sequence[str]) -> None:
    """Remove the rows of these cells that no run of the plan has."""
    for cell in cells:
        rows = read([cell])
        keys = studyplan.obsolete(cell, rows)
        if keys:
            rowfiles.write(rows_of(cell), [row for key, row in rows.items() if key not in keys])
            names = ", ".join(
                sorted({f"{rows[key]['method']} {rows[key]['kind']}" for key in keys})
            )
            print(f"{cell}: {len(keys)} rows removed: {names}")


def measure(cells: Sequence[str], names: Sequence[str]) -> None:
    """Measure the CPU seconds of a few rounds of each method, one run at a time, and store them.

    Each method is measured in the first of these cells that has it, and local training in all.
    """
    measured = studycost.stored()
    for cell in cells:
        for name in methods_of(cell):
            done = measured.get(name, {})
            if (names and name not in names) or cell in done or (done and name != "local"):
                continue
            seconds = [rounds_seconds(cell, name, rounds) for rounds in studycost.ROUNDS]
            if None not in seconds:
                measured[name] = done | {cell: studycost.once_and_per_round(seconds)}
                studycost.store(measured)
                print(f"{cell} {name}: {seconds} s of CPU", flush=True)


def rounds_seconds(cell: str, name: str, rounds: int) -> float | None:
    """CPU seconds of a run of so many rounds, or None if it fails."""
    flags = next(iter(studyplan.tuning(cell, name)))
    words = write_job(Task(cell, name, "trial", 0, flags), PLACE)
    words += ["--rounds", str(rounds), "--evaluate.every", str(studycost.ROUNDS[0])]
    forks.start(words, PLACE / "measured")
    status, seconds = forks.wait()[1:]
    if status != DONE:
        print(f"{cell} {name}: {forks.message(PLACE / 'measured')}", file=sys.stderr)
    forks.remove(PLACE / "measured")
    return round(seconds, 1) if status == DONE else None


def work(options: argparse.Namespace) -> None:
    """Do tasks, several at a time, until none is left or the time is over."""
    rows = read(list(PLAN["cells"]))
    spent = 0.0  # CPU seconds of ended runs
    running: dict[int, Task] = {}  # by process
    tried: set[str] = set()  # keys of started runs; one that leaves no row is for another call
    forks.stop_on_signals(running, lambda task: PLACE / task.key)
    while True:
        tasks = (
            task
            for task in ready(rows, options.cells, options.methods, options.seeds)
            if task.key not in tried
        )
        while len(running) < options.side_by_side and spent < options.hours * HOUR:
            task = next(tasks, None)
            if task is None:
                break
            tried.add(task.key)
            running[forks.start(write_job(task, PLACE), PLACE / task.key)] = task
        if not running:
            return
        process, status, seconds = forks.wait()
        spent += seconds
        task = running.pop(process)
        if row := finish(task, status, seconds):
            rows[task.key] = row
            rowfiles.write(rows_of(task.cell), [*rowfiles.read(rows_of(task.cell)), row])


def finish(task: Task, status: int, seconds: float) -> dict[str, Any] | None:
    """The row of an ended run; None if it has ended in another way than by its job.

    A run that diverges, or whose job is refused, has a row too, which says so.
    """
    folder = PLACE / task.key
    tuned = task.flags.removeprefix(studyplan.common_flags(task.cell, task.method)).strip()
    row = {**task._asdict(), "flags": tuned, "key": task.key, "cpu": round(seconds, 1)}
    outcome = None
    if status == DONE:
        outcome = figures(folder / "results.h5", each=task.kind != "trial")
    elif forks.diverged(message := forks.message(folder)) or status == WRONG:
        outcome = {"failed": message[:200]}
        print(f"{task}: {message}", file=sys.stderr)
    else:
        print(f"{task}: status {status}: {message}", file=sys.stderr)
    forks.remove(folder)
    what = f"{task.cell} {task.method} {task.kind} {task.seed}"
    print(f"{what}: {seconds:.1f} s of CPU", flush=True)
    return row | outcome if outcome else None


def figures(path: Path, each: bool) -> dict[str, Any]:
    """What a row says of a run, at the evaluation with the best validation accuracy.

    each: whether every client's values are there, not only their means.
    accuracy: of each client's own model.  received: of what it would receive next.  epochs: over
    the client's examples until the last round, mean over clients.  down, up: bytes of a client in a
    round.  virtual, seconds: of all rounds, simulated and real; `cpu` is of the process.
    """
    record = load(path)
    by_round = record.column("clients/accuracy_validation")  # nan in rounds without evaluation
    rounds = np.flatnonzero(np.isfinite(by_round).any(1))
    scores = np.nanmean(by_round[rounds], 1)
    best = int(rounds[scores.argmax()])
    traffic = summary.traffic(record)

    def by_client(name: str) -> list[float | None] | float:
        values = record.column(f"clients/{name}")[best]
        if not each:
            return round(float(np.nanmean(values)), 4)
        return rowfiles.by_client(values)

    return {
        "validation": round(float(scores.max()), 4),
        "round": best,
        "accuracy": by_client("accuracy"),
        **({"received": by_client("accuracy_received")} if each else {}),
        "epochs": round(float(record.column("clients/epochs").sum(0).mean()), 2),
        "down": round(float(traffic["down_per_client_round"])),
        "up": round(float(traffic["up_per_client_round"])),
        "virtual": round(float(record.column("rounds/virtual_seconds")[-1]), 1),
        "seconds": round(float(record.column("rounds/seconds").sum()), 1),
        "commit": short_commit(record),
    }


if __name__ == "__main__":
    main()
