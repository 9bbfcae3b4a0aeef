"""The runs of the study: cells, methods, trials and seeds, in the order of their value."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import methods  # noqa: E402
import rowfiles  # noqa: E402
from runs import RESULTS  # noqa: E402

from hpcfed.algorithms import ALGORITHMS  # noqa: E402
from hpcfed.config.load import load  # noqa: E402
from hpcfed.config.methods import kind_of  # noqa: E402
from hpcfed.config.write import to_toml  # noqa: E402
from hpcfed.launch.matched import matched_job  # noqa: E402
from hpcfed.report.differences import Paired  # noqa: E402

JOB = HERE / "base.toml"
BASE = tomllib.loads(JOB.read_text())
PLAN = tomllib.loads((HERE / "study.toml").read_text())
DIFFERENT = ("any models", "a common head")  # what methods for different models accept
OF_TUNING = ("--local.lr", "--local.momentum", "--models.mix", "--local.optimiser")
ALONE = ("local", "central")  # methods without a matched baseline


def use_scale(name: str) -> None:
    """Lay the plan of another scale, NAME.toml, over that of study.toml.

    Its cells are in the place of the others; of other tables, entries of the same name are.
    """
    over = tomllib.loads((HERE / f"{name}.toml").read_text())
    for key, value in over.items():
        PLAN[key] = PLAN[key] | value if isinstance(value, dict) and key != "cells" else value


def results() -> Path:
    """The folder of the rows and tables."""
    return RESULTS / PLAN["results"]


class Task(NamedTuple):
    """One run.

    kind: "trial" of tuning, "seed" of the study, or "matched" baseline.  seed: of the run.
    flags: over base.toml; of a matched run those of the method's own job.
    """

    cell: str
    method: str
    kind: str
    seed: int
    flags: str

    @property
    def key(self) -> str:
        """What makes runs the same: a digest of the job and its seed.

        Local training has the key of a matched baseline with the same settings, so that it is run
        once for all of them.
        """
        alone = self.kind == "matched" or (self.kind == "seed" and self.method == "local")
        job = matched_fields(self.flags) if alone else self.flags
        return sha256(f"{job} --seed {self.seed}".encode()).hexdigest()[:12]


def several(cell: str) -> bool:
    """Whether the clients of a cell have different models."""
    return "," in PLAN["models"][PLAN["cells"][cell][2]]


def methods_of(cell: str) -> list[str]:
    """Local training, central training and FedAvg; then the methods that the cell is for."""
    names = ["local"]
    if several(cell):
        names += [n for n in ALGORITHMS if n != "local" and accepts(n) in DIFFERENT]
    else:
        names += ["fedavg", "central"]
        names += [n for n in ALGORITHMS if kind_of(ALGORITHMS[n]) == "personal"]
    data = PLAN["cells"][cell][0]
    return [
        name
        for name in names
        if name not in PLAN["left_out"]
        and cell in PLAN["only"].get(name, [cell])
        and (data != "heart" or not needs_images(name))
    ]


@cache
def accepts(name: str) -> str:
    return ALGORITHMS[name].load()().accepts


@cache
def needs_images(name: str) -> bool:
    """Whether a method has two augmented views, makes images, or needs networks of images."""
    method = ALGORITHMS[name].load()()
    of_images = ("fedzkt", "pfedhr", "ghn", "fedktl")
    return method.views > 1 or name in of_images or bool({"proxy", "server"} & set(method.needs))


def common_flags(cell: str, name: str) -> str:
    """A method's flags in a cell, without those of tuning."""
    data, partition, mix, share = PLAN["cells"][cell]
    settings = PLAN["settings"].get(name, methods.SETTINGS.get(name, "")).split()
    pairs = zip(settings[::2], settings[1::2], strict=True)
    untuned = [word for pair in pairs if pair[0] not in OF_TUNING for word in pair]
    parts = [
        *("--algorithm.name", name, PLAN["data"][data], PLAN["partitions"][partition]),
        PLAN["models"][mix],
        *(["--participation", str(share)] if share < 1 else []),
        *(PLAN["needs"][need] for need in ALGORITHMS[name].load()().needs),
        *untuned,
        PLAN["everywhere"],
    ]
    return " ".join(" ".join(parts).split())


def settings(name: str) -> list[str]:
    """The tuned settings that are tried: the same number for every method."""
    if name not in PLAN["weights"]:
        return [f"--local.lr {rate}" for rate in PLAN["rates_alone"]]
    field, *values = PLAN["weights"][name]
    return [f"--local.lr {rate} --{field} {value}" for value in values for rate in PLAN["rates"]]


def tuning(cell: str, name: str) -> dict[str, Task]:
    """The trials of a method, by the flags of the runs that follow if the trial is the best."""
    common, seed = common_flags(cell, name), PLAN["tuning_seed"]
    every = [f"{common} {tuned}" for tuned in settings(name)]
    return {
        flags: Task(cell, name, "trial", seed, f"{flags} {PLAN['of_trials']}") for flags in every
    }


def final(cell: str, name: str, flags: str, seeds: Sequence[int]) -> Iterator[Task]:
    """The runs of a method with the flags that tuning has chosen, and its matched baseline."""
    for seed in seeds:
        yield Task(cell, name, "seed", seed, flags)
        if name not in ALONE:
            yield Task(cell, name, "matched", seed, flags)


def chosen(cell: str, name: str, rows: dict[str, Any]) -> str | None:
    """The flags of the trial with the best validation score; None before all trials are done, ""
    if all have failed.
    """
    tried = {flags: rows.get(task.key) for flags, task in tuning(cell, name).items()}
    if not all(tried.values()):
        return None
    scores = {f: row["validation"] for f, row in tried.items() if row and "validation" in row}
    return max(scores, key=scores.__getitem__) if scores else ""


def ready(
    rows: dict[str, Any], cells: list[str], names: Sequence[str] = (), seeds: int = 0
) -> Iterator[Task]:
    """All runs that can be started now and have no row, the most valuable first.

    A run that several methods share is yielded once.
    names: of methods; none: all.  seeds: only so many; 0: all.
    """
    yielded = set(rows)
    for cell in cells:
        for name in methods_of(cell):
            if names and name not in names:
                continue
            for task in tasks_of(cell, name, rows, seeds):
                if task.key not in yielded:
                    yielded.add(task.key)
                    yield task


def tasks_of(cell: str, name: str, rows: dict[str, Any], seeds: int) -> list[Task]:
    """The runs of a method in a cell: its trials, or what follows from them."""
    flags = chosen(cell, name, rows)
    if flags is None:
        return list(tuning(cell, name).values())
    if not flags:
        return []
    return list(final(cell, name, flags, PLAN["seeds"][: seeds or None]))


def planned(cell: str, rows: dict[str, Any]) -> Iterator[Task]:
    """All runs of a cell. Before a method's trials are done, one of its settings counts as chosen:
    another for each method, so that matched baselines are as different as they may become.
    """
    for i, name in enumerate(methods_of(cell)):
        trials = tuning(cell, name)
        yield from trials.values()
        flags = chosen(cell, name, rows)
        if flags is None:
            flags = list(trials)[i % len(trials)]
        yield from final(cell, name, flags, PLAN["seeds"]) if flags else ()


def obsolete(cell: str, rows: dict[str, Any]) -> set[str]:
    """The keys of a cell's rows that no run of the plan has, as of earlier matched baselines.

    None before all methods of the cell are tuned: their runs are not known yet.
    """
    if any(chosen(cell, name, rows) is None for name in methods_of(cell)):
        return set()
    of_cell = {key for key, row in rows.items() if row["cell"] == cell}
    return of_cell - {task.key for task in planned(cell, rows)}


def difference(runs: Mapping[int, Any], base: Mapping[int, Any]) -> Paired | None:
    """The paired differences of two methods over the seeds that both have; None without any.

    runs, base: rows of finished runs, by seed.
    """
    pairs = [(runs[seed]["accuracy"], base[seed]["accuracy"]) for seed in runs if seed in base]
    if not pairs:
        return None
    return Paired(
        tuple(
            np.array([a - b for a, b in zip(*pair, strict=True) if None not in (a, b)])
            for pair in pairs
        )
    )


@cache
def matched_fields(flags: str) -> str:
    """The matched job of a method's job, as JSON without its seed."""
    return json.dumps(matched_job(load([str(JOB), *flags.split()], environ={})), sort_keys=True)


def write_job(task: Task, folder: Path) -> list[str]:
    """The words of a run's command line: its job file and flags."""
    seed = ["--seed", str(task.seed)]
    if task.kind != "matched":
        return [str(JOB), *task.flags.split(), *seed]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.key}.toml"
    path.write_text(to_toml(json.loads(matched_fields(task.flags))))
    return [str(path), *seed]


def read(cells: list[str]) -> dict[str, Any]:
    """All rows of these cells, by the key of their run."""
    rows = {}
    for cell in cells:
        rows |= rowfiles.by_key(rows_of(cell))
    return rows


def rows_of(cell: str) -> Path:
    """Return the file of a cell's rows."""
    return results() / f"{cell}.jsonl.xz"
