"""Is anything ever lost? Runs that a fault strikes at a random moment, each held against the clean
run of its job.

`python benchmarks/chaos.py [--runs 300] [--seed 0] [--results FILE] [--resume] [--only KIND ...]
[--number N] [--at-once N] [--pause FILE]`

Each run is real: mpirun, 2 or 3 ranks, 8 rounds of some 50 ms, a checkpoint every second. Processes
are killed or stopped, disks are full, files are damaged after a kill or while the run goes on, file
calls fail, are cut short or lost (filecalls.c), and a second run is started in the folder of the
first. What strikes it, when and whom: streams that the seed, the kind of fault and the run's number
name. A run that ends before its last round is started
again, as a batch script would do, on another number of ranks. What counts in the end: `hpcfed
digest`, and whether its partition is whole. Beside it: rounds that were done twice; seconds from
the fault until a round is done that was not done before it. Disks that can be full are mounted,
which takes root, and filecalls.c is compiled by cc; without them these faults are left out, and a
line says so.

The result file is written after each run: what is cut short goes on with --resume.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

from calls import compiler
from faults import FAULTS, Fault
from paired import RESULTS, machine, one_a_line
from struck import JOBS, Case, Outcome, cleanly, play
from tally import rows, table

from hpcfed.core.rng import stream
from hpcfed.storage.atomic import put

MOST, LATER = 3, 2  # ranks of the first start and of others
BETWEEN = 0.1  # seconds after the end of a round in which a fault strikes
STARTING = 3.0  # the same after the ranks are there, before the first round


def main() -> None:
    options = arguments()
    outcomes = recorded(options) if options.resume else []
    if left := [kind for kind in FAULTS if not possible(FAULTS[kind])]:
        print(f"left out, for want of root or of a C compiler: {', '.join(left)}", flush=True)
    had = {outcome.case for outcome in outcomes}
    cases = [case for case in drawn(options) if case not in had]
    with (
        TemporaryDirectory(prefix="hpcfed-chaos-") as folder,
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        place = options.keep or Path(folder)
        jobs = list(dict.fromkeys(case.job for case in cases))
        clean = dict(zip(jobs, pool.map(lambda job: cleanly(job, place), jobs), strict=True))
        for outcome in pool.map(
            lambda case: played(case, clean[case.job], place, options.pause), cases
        ):
            outcomes.append(outcome)
            print(outcome, flush=True)
            if options.results:
                save(outcomes, options)  # each time, so that an end before the last loses none
    print(table(rows(outcomes, FAULTS)))
    sys.exit(any(outcome.failed for outcome in outcomes))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--runs", type=int, default=8 * len(FAULTS), help="in all, the kinds of fault taking turns"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only",
        choices=FAULTS,
        metavar="KIND",
        nargs="+",
        help="these kinds; without --results nothing is written",
    )
    parser.add_argument("--number", type=int, help="with --only: this run alone")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="where outcomes go, as JSON, and each run into NAME-runs.json beside it; without "
        "--only results/bench/chaos.json",
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out the runs that NAME-runs.json has"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs side by side")
    parser.add_argument(
        "--pause", type=Path, metavar="FILE", help="no run begins while this file is there"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="run folders go there, and stay"
    )
    options = parser.parse_args()
    if not (options.results or options.only):
        options.results = RESULTS / "chaos.json"
    if options.resume and not options.results:
        parser.error("--resume with --only needs --results")
    return options


def drawn(options: argparse.Namespace) -> list[Case]:
    """The runs that are asked for: kinds take turns."""
    kinds = options.only or [kind for kind in FAULTS if possible(FAULTS[kind])]
    if options.number is not None:
        return [draw(options.seed, kind, options.number) for kind in kinds]
    return [draw(options.seed, kinds[i % len(kinds)], i // len(kinds)) for i in range(options.runs)]


def possible(fault: Fault) -> bool:
    """Whether this machine can have such a fault: mounts take root, failing calls a compiler."""
    return (not fault.disk or os.geteuid() == 0) and (not fault.calls or compiler())


def draw(seed: int, kind: str, number: int) -> Case:
    """The run of this name."""
    g, fault = stream(seed, "chaos", kind, number), FAULTS[kind]
    ranks = int(g.integers(fault.fewest, MOST + 1)), int(g.integers(1, LATER + 1))
    first, last = fault.rounds
    return Case(
        kind,
        number,
        seed,
        list(JOBS)[int(g.integers(len(JOBS)))],
        ranks,
        int(g.integers(first, last + 1)),
        float(g.uniform(0, BETWEEN if last else STARTING)),
    )


def played(case: Case, clean: str, folder: Path, pause: Path | None) -> Outcome:
    while pause and pause.exists():
        sleep(1)
    return play(case, clean, folder)


def recorded(options: argparse.Namespace) -> list[Outcome]:
    """The outcomes in the result file of runs that are asked for now, in order."""
    file = runs_beside(options.results)
    if not file.exists():
        return []
    runs = json.loads(file.read_text())["runs"]
    wanted = set(drawn(options))
    return [outcome for outcome in map(Outcome.of, runs) if outcome.case in wanted]


def save(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    """Write what was found so far, with the machine, into the result file, by kind of fault; and
    each run, with all that was drawn for it and what became of it, into one beside it.
    """
    failed = [f"{it.case}: {it.verdict}, statuses {it.statuses}" for it in outcomes if it.failed]
    text = {
        "benchmark": "chaos",
        "machine": machine(),
        "seed": options.seed,
        "at_once": options.at_once,
        "rows": rows(outcomes, FAULTS),
        "failed": failed,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    put(options.results, one_a_line(text).encode())
    runs = {"runs": [outcome.plain() for outcome in outcomes]}
    put(runs_beside(options.results), one_a_line(runs).encode())


def runs_beside(results: Path) -> Path:
    """The file of all single runs, which a resumed benchmark reads and git does not track."""
    return results.with_name(f"{results.stem}-runs.json")


if __name__ == "__main__":
    main()
