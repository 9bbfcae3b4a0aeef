"""Core-hours of the study, from measured seconds.

`study.py --measure` does a run of 2 rounds and one of 6 of each method in one cell, and of local
training in every cell, both evaluated in every second round. The difference tells apart what a run
costs once and per round; `seconds.json` has both in CPU seconds. In a cell in which a method was
not measured, its rounds take as many times those of local training as in the cell in which it was.
Finished runs count in place of estimates.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any

from studyplan import BASE, HERE, PLAN, Task, matched_fields, planned

ROUNDS = (2, 6)  # of the runs that are measured; both end with an evaluation
MEASURED = HERE / "seconds.json"
Seconds = dict[str, dict[str, list[float]]]  # by method and cell: once, and per round


def stored() -> Seconds:
    return json.loads(MEASURED.read_text()) if MEASURED.exists() else {}


def store(measured: Seconds) -> None:
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n")


def once_and_per_round(seconds: list[float]) -> list[float]:
    """What a run costs once, and per round, from the seconds of runs of ROUNDS."""
    per_round = max(0.0, seconds[1] - seconds[0]) / (ROUNDS[1] - ROUNDS[0])
    return [round(max(0.0, seconds[0] - ROUNDS[0] * per_round), 2), round(per_round, 3)]


def estimate(measured: Seconds, cell: str, name: str, rounds: int) -> float:
    """CPU seconds of a run of a method in a cell."""
    if "examples_per_second" in PLAN:
        return estimate_by_examples(measured, cell, name, rounds)
    if not measured.get(name) or not measured.get("local", {}).get(cell):
        sys.exit(f"no seconds of {name} or of local training in {cell}; --measure measures them")
    if cell in measured[name]:
        once, per_round = measured[name][cell]
        return once + rounds * per_round
    other, (once, per_round) = next(iter(measured[name].items()))
    here, elsewhere = (measured["local"][one][1] for one in (cell, other))
    return once + rounds * per_round * here / elsewhere


def estimate_by_examples(measured: Seconds, cell: str, name: str, rounds: int) -> float:
    """Seconds of a run on another machine: a round takes as many times that of local training as
    measured here, and local training as its examples say.
    """
    data, _, _, share = PLAN["cells"][cell]
    flags = PLAN["data"][data].split()
    value = dict(zip(flags[::2], flags[1::2], strict=True))
    clients = int(value.get("--clients", BASE["clients"]))
    examples = int(value.get("--data.train_limit", 0))
    examples = examples or clients * int(value["--data.client_limit"])
    other, (_, per_round) = next(iter(measured[name].items()))
    times = per_round / measured["local"][other][1]
    trained = examples * (1 - BASE["evaluate"]["validation"]) * share
    return rounds * times * trained / PLAN["examples_per_second"]


def hours(rows: dict[str, Any], cell: str, names: Sequence[str] = (), seeds: int = 0) -> float:
    """Core-hours of the runs of a cell that have no row yet.

    names, seeds: only of these methods, and only so many seeds, as in studyplan.ready.
    """
    measured, done = stored(), defaultdict(list)
    for row in rows.values():
        if row["cell"] == cell and "failed" not in row:
            done[row["method"], row["kind"]].append(row["cpu"])
    tasks = {
        task.key: task
        for task in planned(cell, rows)
        if (not names or task.method in names)
        and (not seeds or task.kind == "trial" or task.seed in PLAN["seeds"][:seeds])
    }
    seconds = (
        mean(done[task.method, task.kind])
        if done[task.method, task.kind]
        else estimate_task(measured, task)
        for key, task in tasks.items()
        if key not in rows
    )
    return sum(seconds) / 3600


def estimate_task(measured: Seconds, task: Task) -> float:
    """CPU seconds of a run without rows of its kind."""
    flags = task.flags.split()
    numbers = [flags[i + 1] for i, flag in enumerate(flags) if flag == "--rounds"]
    rounds = int(numbers[-1]) if numbers else BASE["rounds"]
    if task.kind != "matched":
        return estimate(measured, task.cell, task.method, rounds)
    job = json.loads(matched_fields(task.flags))
    if job["algorithm"]["name"] != "local":  # the method itself, without the other clients
        return estimate(measured, task.cell, task.method, rounds)
    times = job["local"].get("epochs", 1)
    return times * estimate(measured, task.cell, "local", rounds)
