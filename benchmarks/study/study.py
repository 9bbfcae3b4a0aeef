"""Does the federation help? The study of design.md.

`python benchmarks/study/study.py [--hours N] [--cells NAME ...] [--methods NAME ...]
[--seeds N] [--side-by-side N]` does the runs that have no row in results/study yet, the most
valuable first, and writes the tables. Each run leaves one line in the file of its cell; stopped,
the same command continues. `--plan` prints core-hours by cell and what fits into `--hours`.
`--tables` writes the tables alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import numpy as np
import studytables
from studyplan import (
    EVIDENCE,
    HERE,
    KEPT,
    PLAN,
    Task,
    common_flags,
    hours,
    methods_of,
    read,
    ready,
    seconds,
    write_job,
)

from hpcfed.results import summary
from hpcfed.storage.results import load

sys.path.append(str(HERE.parent))

from runs import FOLDER, Processes, Run, run, short_commit, slug

HOUR = 3600.0


def main() -> None:
    options = arguments()
    rows = read(list(PLAN["cells"]))
    if options.plan:
        print_plan(rows, options.cells, options.hours)
        return
    if not options.tables:
        Worker(rows, options).work()
    studytables.write(read(list(PLAN["cells"])))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=40.0, help="core-hours of this call")
    parser.add_argument("--cells", nargs="+", default=[*PLAN["cells"]], choices=PLAN["cells"])
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=0, help="only so many; default: all")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--tables", action="store_true")
    return parser.parse_args()


def print_plan(rows: dict[str, Any], cells: list[str], limit: float) -> None:
    """Print the core-hours of each cell's missing runs, and the cells that fit into the limit."""
    total = 0.0
    print(f"{'cell':28}{'methods':>8}{'hours':>8}{'sum':>8}  fits into {limit:g} h")
    for cell, missing in hours(rows, cells).items():
        total += missing
        fits = "yes" if total <= limit else "no"
        print(f"{cell:28}{len(methods_of(cell)):>8}{missing:>8.1f}{total:>8.1f}  {fits}")


class Worker:
    """Runs tasks, several at a time, until none is left or the time is over.

    rows: of finished runs, by key; new ones are added to them and to the files.
    """

    def __init__(self, rows: dict[str, Any], options: argparse.Namespace) -> None:
        self.rows, self.options = rows, options
        self.running: set[str] = set()
        self.failed: set[str] = set()  # what ended without a row, which another call takes again
        self.processes, self.changed = Processes(), Condition()
        self.counted = 0.0  # CPU seconds of all finished processes
        self.cost, self.spent = seconds(rows), 0.0  # core-seconds, those of running tasks included
        path = [str(EVIDENCE), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)

    def work(self) -> None:
        threads = [Thread(target=self.serve) for _ in range(self.options.side_by_side)]
        with self.processes.handle_signals():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def serve(self) -> None:
        """Do one task after the other."""
        while task := self.next_task():
            row = self.measure(task)
            with self.changed:
                self.running.discard(task.key)
                if not row:
                    self.failed.add(task.key)
                else:
                    self.rows[task.key] = row
                    KEPT.mkdir(parents=True, exist_ok=True)
                    with (KEPT / f"{task.cell}.jsonl").open("a") as file:
                        file.write(json.dumps(row) + "\n")
                self.changed.notify_all()

    def next_task(self) -> Task | None:
        """Take the next task, or wait for one that another run makes possible; None: the end."""
        options = self.options
        with self.changed:
            while not self.processes.stopping:
                tasks = ready(self.rows, options.cells, options.methods, options.seeds)
                taken = self.running | self.failed
                task = next((one for one in tasks if one.key not in taken), None)
                if task:
                    self.spent += self.cost[task.cell, task.method]
                    if self.spent > options.hours * HOUR:
                        return None
                    self.running.add(task.key)
                    return task
                if not self.running:
                    return None
                self.changed.wait()
        return None

    def measure(self, task: Task) -> dict[str, Any] | None:
        """The row of a run; None if a signal has stopped it.

        A run that diverges has a row too, which says so.
        """
        name = slug(f"{task.cell}-{task.method}-{task.kind}-{task.key}")
        path = FOLDER / "study" / f"{name}.h5"
        job, words = write_job(task, FOLDER / "study")
        error = run(Run(job, words, path), FOLDER, self.processes)
        tuned = task.flags.removeprefix(common_flags(task.cell, task.method)).strip()
        row = {**task._asdict(), "flags": tuned, "key": task.key}
        if path.exists():
            row |= figures(path, each=task.kind != "trial")
            path.unlink()
        elif error and "status 2" in error:
            row |= {"failed": error.strip().splitlines()[-1][:200]}
        elif error:
            print(error, file=sys.stderr)
            return None
        else:
            return None
        with self.changed:  # a process counts when it has ended
            total = sum(os.times()[2:4])
            row["cpu"], self.counted = round(total - self.counted, 1), total
        what = f"{task.cell} {task.method} {task.kind} {task.seed}"
        print(f"{what}: {row['cpu']:.0f} s of CPU", flush=True)
        return row


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
        return [None if np.isnan(value) else round(float(value), 4) for value in values]

    return {
        "validation": round(float(scores.max()), 4),
        "round": best,
        "accuracy": by_client("accuracy"),
        "received": by_client("accuracy_received"),
        "epochs": round(float(record.column("clients/epochs").sum(0).mean()), 2),
        "down": round(float(traffic["down_per_client_round"])),
        "up": round(float(traffic["up_per_client_round"])),
        "virtual": round(float(record.column("rounds/virtual_seconds")[-1]), 1),
        "seconds": round(float(record.column("rounds/seconds").sum()), 1),
        "commit": short_commit(record),
    }


if __name__ == "__main__":
    main()
