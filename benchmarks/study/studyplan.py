"""The runs of the study: cells, methods, trials and seeds, in the order of their value."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
EVIDENCE = HERE.parent / "evidence"  # has the models of most cells
sys.path[:0] = [str(HERE), str(HERE.parent)]
sys.path.append(str(EVIDENCE))

import methods  # noqa: E402
from runs import RESULTS  # noqa: E402

from hpcfed.algorithms import ALGORITHMS  # noqa: E402
from hpcfed.config.load import load  # noqa: E402
from hpcfed.config.methods import kind_of  # noqa: E402
from hpcfed.config.write import to_toml  # noqa: E402
from hpcfed.launch.matched import matched_job  # noqa: E402

JOB = HERE / "base.toml"
KEPT = RESULTS / "study"
PLAN = tomllib.loads((HERE / "study.toml").read_text())
DIFFERENT = ("any models", "a common head")  # what methods for different models accept
NEEDS = {
    "proxy": "--models.proxy miniature:henn_2",
    "server": "--models.server miniature:henn_5",
    "public": "",
}
OF_TUNING = ("--local.lr", "--local.momentum", "--models.mix", "--local.optimiser")
ALONE = ("local", "central")  # methods without a matched baseline
SECONDS = 25.0  # of local training in the cell dirichlet-five, before it is measured
GUESS = 2.0  # a method's time over local training, where nothing is measured


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
        """What makes runs the same: a digest of the job and its seed."""
        job = matched_fields(self.flags) if self.kind == "matched" else self.flags
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
        and (data not in ("heart", "sentiment140") or not needs_images(name))
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
        *(NEEDS[need] for need in ALGORITHMS[name].load()().needs),
        *untuned,
    ]
    return " ".join(" ".join(parts).split())


def trials(name: str) -> list[str]:
    """The flags that are tried: the same number for every method."""
    if name not in PLAN["weights"]:
        return [f"--local.lr {rate}" for rate in PLAN["rates_alone"]]
    field, *values = PLAN["weights"][name]
    return [f"--local.lr {rate} --{field} {value}" for value in values for rate in PLAN["rates"]]


def tuning(cell: str, name: str) -> list[Task]:
    common = common_flags(cell, name)
    seed = PLAN["tuning_seed"]
    return [Task(cell, name, "trial", seed, f"{common} {flags}") for flags in trials(name)]


def final(cell: str, name: str, flags: str) -> Iterator[Task]:
    """The runs of a method with the flags that tuning has chosen, and its matched baseline."""
    for seed in PLAN["seeds"]:
        yield Task(cell, name, "seed", seed, flags)
        if name not in ALONE:
            yield Task(cell, name, "matched", seed, flags)


def chosen(cell: str, name: str, rows: dict[str, Any]) -> str | None:
    """The flags of the trial with the best validation score; None before all trials are done."""
    tried = [(rows.get(task.key), task.flags) for task in tuning(cell, name)]
    if not all(row for row, _ in tried):
        return None
    scores = {flags: row["validation"] for row, flags in tried if row and "validation" in row}
    return max(scores, key=scores.__getitem__) if scores else ""


def ready(
    rows: dict[str, Any], cells: list[str], names: list[str], seeds: int = 0
) -> Iterator[Task]:
    """All runs that can be started now and have no row, the most valuable first.

    names: of methods; none: all.  seeds: only so many; 0: all.
    """
    for cell in cells:
        for name in methods_of(cell):
            if names and name not in names:
                continue
            flags = chosen(cell, name, rows)
            tasks = tuning(cell, name) if flags is None else []
            if flags:
                allowed = PLAN["seeds"][: seeds or None]
                tasks = [task for task in final(cell, name, flags) if task.seed in allowed]
            yield from (task for task in tasks if task.key not in rows)


@cache
def matched_fields(flags: str) -> str:
    """The matched job of a method's job, as JSON without its seed."""
    return json.dumps(matched_job(load([str(JOB), *flags.split()], environ={})), sort_keys=True)


def write_job(task: Task, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The job file of a task, and the flags over it."""
    seed = ("--seed", str(task.seed))
    if task.kind != "matched":
        return JOB, (*task.flags.split(), *seed)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task.cell}-{task.method}-{task.seed}.toml"
    path.write_text(to_toml(json.loads(matched_fields(task.flags))))
    return path, seed


def read(cells: list[str]) -> dict[str, Any]:
    """All rows of these cells, by the key of their run."""
    rows = {}
    for cell in cells:
        path = KEPT / f"{cell}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            rows[row["key"]] = row
    return rows


def seconds(rows: dict[str, Any]) -> dict[tuple[str, str], float]:
    """CPU seconds of a run, by cell and method: measured, or of other cells and methods."""
    measured: dict[tuple[str, str], list[float]] = {}
    for row in rows.values():
        if "cpu" in row and row["kind"] != "matched":
            measured.setdefault((row["cell"], row["method"]), []).append(row["cpu"])
    means = {pair: sum(values) / len(values) for pair, values in measured.items()}
    table = json.loads((methods.KEPT / "table.json").read_text())["fashion-mnist"]
    ratio = {entry["method"]: max(1.0, entry["seconds_ratio"]) for entry in reversed(table)}
    usual = means.get(("dirichlet-five", "local"), SECONDS)
    return {
        (cell, name): means.get(
            (cell, name),
            means.get((cell, "local"), usual * size(cell))
            * ratio.get(name, GUESS)
            * (PLAN["cells"][cell][3] if (cell, "local") not in means else 1),
        )
        for cell in PLAN["cells"]
        for name in methods_of(cell)
    }


def size(cell: str) -> float:
    """The examples of a cell over those of dirichlet-five."""
    data = PLAN["cells"][cell][0]
    return {"cifar10-1000": 4.0, "cifar10-4500": 18.0, "heart": 0.2}.get(data, 1.0)


def hours(rows: dict[str, Any], cells: list[str]) -> dict[str, float]:
    """Core-hours of the runs of each cell that have no row yet."""
    cost, missing = seconds(rows), {}
    for cell in cells:
        remaining = sum(
            cost[cell, "local" if task.kind == "matched" else task.method]
            for task in ready(rows, [cell], [])
        )
        for name in methods_of(cell):
            if chosen(cell, name, rows) is None:  # its seeds follow its trials
                alone = cost[cell, "local"] * (name not in ALONE)
                remaining += len(PLAN["seeds"]) * (cost[cell, name] + alone)
        missing[cell] = remaining / 3600
    return missing
