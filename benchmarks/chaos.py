"""Is anything ever lost? Runs that a fault strikes at a random moment, each held against the clean
run of its job.

`python benchmarks/chaos.py [--runs 200] [--seed 0] [--only KIND] [--number N] [--at-once N]
[--pause FILE]`

Each run is real: mpirun, 2 to 5 ranks, 30 rounds of some 50 ms, a checkpoint every third. What
strikes it, when and
whom: streams that the seed, the kind of fault and the run's number name. A run that ends before its
last round is started again, as a batch script would do, on another number of ranks. What counts in
the end: `hpcfed digest`. Beside
it: rounds that were done twice; seconds from the fault until a round is done that was not done
before it. Disks that can be full are mounted, which takes root; without it these faults are left
out.
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

from faults import FAULTS
from paired import RESULTS, machine
from struck import JOBS, Case, Outcome, cleanly, play
from tally import rows, table

from hpcfed.rng import stream

MOST, LATER = 5, 2  # ranks of the first start and of others
BETWEEN = 0.1  # seconds after the end of a round in which a fault strikes
STARTING = 3.0  # the same after the ranks are there, before the first round


def main() -> None:
    options = arguments()
    cases = drawn(options)
    with (
        TemporaryDirectory(prefix="hpcfed-chaos-") as folder,
        ThreadPoolExecutor(options.at_once) as pool,
    ):
        place = options.keep or Path(folder)
        jobs = list(dict.fromkeys(case.job for case in cases))
        clean = dict(zip(jobs, pool.map(lambda job: cleanly(job, place), jobs), strict=True))
        outcomes: list[Outcome] = []
        for outcome in pool.map(
            lambda case: played(case, clean[case.job], place, options.pause), cases
        ):
            outcomes.append(outcome)
            print(outcome, flush=True)
            if not options.only:
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
        "--only", choices=FAULTS, metavar="KIND", help="this kind; nothing is written to results/"
    )
    parser.add_argument("--number", type=int, help="with --only: this run alone")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs side by side")
    parser.add_argument(
        "--pause", type=Path, metavar="FILE", help="no run begins while this file is there"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="run folders go there, and stay"
    )
    return parser.parse_args()


def drawn(options: argparse.Namespace) -> list[Case]:
    """The runs that are asked for: kinds take turns."""
    kinds = (
        [options.only]
        if options.only
        else [kind for kind in FAULTS if os.geteuid() == 0 or not FAULTS[kind].disk]
    )
    if options.number is not None:
        return [draw(options.seed, options.only, options.number)]
    return [draw(options.seed, kinds[i % len(kinds)], i // len(kinds)) for i in range(options.runs)]


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


def save(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    """Write what was found so far, with the machine, to results/bench/chaos.json."""
    failed = [f"{it.case}: {it.verdict}, statuses {it.statuses}" for it in outcomes if it.failed]
    text = {
        "benchmark": "chaos",
        "machine": machine(),
        "seed": options.seed,
        "at_once": options.at_once,
        "rows": rows(outcomes, FAULTS),
        "failed": failed,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "chaos.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main()
