"""The result files behind the tables and pictures of the documentation: what makes them, and
whether the committed ones are of the jobs that would be run now.

`python benchmarks/remake.py NAME ...` runs what has become stale, and writes tables and pictures
anew; `--all` runs everything. Without a name it says what is stale and runs nothing. A change of
code that leaves all fields of a job as they are is not seen: then `--all` is for you to say.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "evidence"))

import ablation
import archive
import h5py
import heart
import methods
import own
import studies
from pictures import reduce_colours
from runs import RESULTS, Run, run_all

from hpcfed.config.files import EMBEDDED
from hpcfed.config.load import load
from hpcfed.report.figures.command import plot
from hpcfed.storage.fields import flat
from hpcfed.storage.tree import read_json

HERE = Path(__file__).parent
HEART = (  # the README's sweep, but for methods and seeds
    *("--data.name", "heart.csv", "--columns.label", "sick", "--columns.client", "hospital"),
    *("--columns.missing", "fill", "--data.partition", "natural", "--clients", "4"),
    *("--models.mix", "mlp", "--rounds", "20"),
)
LONG = ["local training", "local training, two views + CL", "CA + PR + CL (FedClassAvg)"]
PARTS = {  # what of views and contrastive loss does what, on Fashion-MNIST
    "local-simclr-no-cl": ("--local.augment", "simclr"),
    "local-affine-cl": ("--local.augment", "affine", "--algorithm.contrastive", "true"),
}


def of_demo() -> list[Run]:
    """`make demo`: local training and FedClassAvg."""
    return [
        Run(
            EMBEDDED,
            ("--algorithm.name", name, "--rounds", "80"),
            RESULTS / "demo" / f"{name}.h5",
        )
        for name in ("local", "fedclassavg")
    ]


def of_heart() -> list[Run]:
    """The README's sweep of a table: heart.csv, where one starts."""
    return [
        Run(
            EMBEDDED,
            (*HEART, "--algorithm.name", name, "--seed", str(seed)),
            RESULTS / "heart" / f"{name}-seed{seed}.h5",
        )
        for name in ("local", "fedavg", "ditto")
        for seed in (0, 1, 2)
    ]


def of_methods() -> list[Run]:
    cells = {path: cell for cell, path in methods.planned().items()}
    base = methods.rows()[methods.BASE]
    cells |= {path: (data, base, seed) for path, (data, seed) in methods.on_processors().items()}
    return [
        Run(methods.JOB, methods.flags(row, data, seed), path)
        for path, (data, row, seed) in cells.items()
    ]


def of_ablation() -> list[Run]:
    return list(ablation.planned(HERE / "ablation.toml").values())


def of_digits() -> list[Run]:
    return list(ablation.planned(HERE / "ablation-digits.toml").values())


def of_long() -> list[Run]:
    return list(ablation.planned(HERE / "ablation-long.toml", [2], LONG).values())


def of_parts() -> list[Run]:
    flags = ("--algorithm.name", "local", "--seed", "2")
    folder = RESULTS / "ablation-parts"
    return [
        Run(HERE / "ablation.toml", (*flags, *part), folder / f"{name}-seed2.h5")
        for name, part in PARTS.items()
    ]


# folder of results: its runs, and the benchmark that makes them and its table, with arguments
SHOWN: dict[str, tuple[Callable[[], list[Run]], list[str]]] = {
    "demo": (of_demo, []),
    "heart": (of_heart, []),
    "methods": (of_methods, ["methods.py"]),
    "ablation": (of_ablation, ["ablation.py"]),
    "ablation-digits": (of_digits, ["ablation.py", "--job", str(HERE / "ablation-digits.toml")]),
    "ablation-long": (
        of_long,
        ["ablation.py", "--job", str(HERE / "ablation-long.toml"), "--seeds", "2", "--variants"]
        + [ablation.slug(name) for name in LONG],
    ),
    "ablation-parts": (of_parts, []),
    **{
        f"evidence/{name}": (partial(studies.of_folder, name), ["evidence/run.py", *stages])
        for name, stages in studies.folders().items()
    },
    **{f"own/{name}": (partial(own.planned, name), ["own.py", name]) for name in own.TABLES},
}
# many hours, or methods to come: runs are kept as they come, and what is not there is not missing
GROWS = tuple(name for name in SHOWN if name.startswith(("evidence/", "own/", "methods")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*SHOWN, []], metavar="NAME")
    parser.add_argument("--all", action="store_true", help="also run what is not stale")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    options = parser.parse_args()
    for name in archive.STUDIES:
        archive.unpack(RESULTS / name)
    for name in options.names or SHOWN:
        runs = SHOWN[name][0]()
        changed = {run.kept: lines for run in runs if (lines := stale(run))}
        if name in GROWS and not options.names:
            changed = {path: lines for path, lines in changed.items() if path.exists()}
        print(f"{name}: {len(changed)} of {len(runs)} runs are stale", flush=True)
        if not options.names:
            for path, lines in changed.items():
                print(f"  {path.name}: {'; '.join(lines)}")
            continue
        for run in runs if options.all else [run for run in runs if run.kept in changed]:
            run.kept.unlink(missing_ok=True)
        for path in set((RESULTS / name).glob("*.h5")) - {run.kept for run in runs}:
            path.unlink()  # of a row that is no more
        if (study := name.partition("/")[0]) in archive.STUDIES:
            archive.pack(RESULTS / study)  # without what is run again, which would come back
        make(name, runs, options.side_by_side)


def make(name: str, runs: list[Run], side_by_side: int) -> None:
    """Run what is not there, and write the table or picture of all."""
    command = SHOWN[name][1]
    if command:
        words = [str(HERE / command[0]), *command[1:], "--side-by-side", str(side_by_side)]
        subprocess.run([sys.executable, *words], check=True)
        return
    if name == "heart":
        heart.write(Path("data"), Path("heart.csv"))
    run_all(runs, side_by_side)
    if name in archive.STUDIES:
        archive.pack(RESULTS / name)
    if name == "demo":
        plot([run.kept for run in runs], out=RESULTS / "demo" / "curves.png")
        reduce_colours(RESULTS / "demo" / "curves.png")


def stale(run: Run) -> list[str]:
    """In what the job of a committed result differs from the one that would be run now."""
    if not run.kept.exists():
        return ["there is no such file"]
    now, usual = fields_now(run)
    with h5py.File(run.kept) as file:  # the header alone: results are hundreds
        then = flat(read_json(file, "header")["job"])
    counted = {name: value for name, value in then.items() if name in now}
    outdated = {
        name: (counted.get(name, usual.get(name)), value)
        for name, value in now.items()
        if name != "training.engine"  # all that tables are made with have the same bits
    }
    return [f"{name} was {old}, is {new}" for name, (old, new) in outdated.items() if old != new]


def fields_now(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a run's job, and the method's defaults, for those that older files lack."""
    words = list(run.flags)
    if "--seed" not in words:
        return fields_of(run.job, run.flags)
    at = words.index("--seed")
    now, usual = fields_of(run.job, (*words[:at], *words[at + 2 :]))  # the same for all seeds
    return now | {"seed": int(words[at + 1])}, usual


@cache
def fields_of(job_file: Path, flags: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    job = load([str(job_file), *flags], environ={})
    usual = type(job).model_construct(algorithm=type(job.algorithm).model_construct())
    return flat(job.identity()) | {"rounds": job.rounds}, flat(usual.identity())


if __name__ == "__main__":
    main()
