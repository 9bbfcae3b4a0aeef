"""Do the papers' claims hold? The runs behind the tables of FedClassAvg (CIFAR-10, Fashion-MNIST)
and of FedHeNN (CIFAR-10), with small networks and all examples.

`python benchmarks/evidence/run.py [NAME ...] [--side-by-side N] [--folder DIR] [--data DIR]` runs
what is not there yet, in the order of `studies.STAGES`, most valuable first; each run has a folder
below DIR with checkpoints, so that the same command continues where the last one was stopped or
killed, with the same bits. NAME: stages; default: all. `--plan` lists what is left and its
core-hours. `python benchmarks/evidence/run.py table` writes tables and learning curves of what is
there; they are written after each stage too.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import h5py
import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import archive  # noqa: E402
import tables  # noqa: E402
from runs import FOLDER, run_all  # noqa: E402
from studies import KEPT, STAGES, planned  # noqa: E402

DATA = Path("../shared/data")  # cifar10.h5 and fashion_mnist.h5
HELD_OUT = 500  # training examples of each class of CIFAR-10 that serve as test examples


def prepare(data: Path, folder: Path) -> dict[str, Path]:
    """The folder of each data set. CIFAR-10's is made: its last HELD_OUT training examples of each
    class are moved to its test split, which cifar10.h5 has only a tenth of.
    """
    path = folder / "data" / "cifar10.h5"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(data / "cifar10.h5") as file:
            x, y = file["train/images"][()], file["train/labels"][()]
            test = file["test/images"][()], file["test/labels"][()]
            classes = file.attrs["classes"]
        out = np.zeros(len(y), bool)
        for c in range(10):
            out[np.flatnonzero(y == c)[-HELD_OUT:]] = True
        part = path.with_suffix(".part")
        with h5py.File(part, "w") as file:
            file.attrs["classes"] = classes
            for split, images, labels in (
                ("train", x[~out], y[~out]),
                ("test", np.concatenate((x[out], test[0])), np.concatenate((y[out], test[1]))),
            ):
                file[f"{split}/images"], file[f"{split}/labels"] = images, labels
        os.replace(part, path)
    return {"cifar10.toml": path.parent, "fedhenn.toml": path.parent, "fashion-mnist.toml": data}


def main() -> None:
    options = arguments()
    names = options.names or list(STAGES)
    archive.unpack(KEPT)
    if options.plan:
        print(tables.left(names))
        return
    if names == ["table"]:
        print(tables.write())
        return
    roots = prepare(options.data, options.folder)
    for name in names:
        runs = [
            run._replace(flags=(*run.flags, "--data.root", str(roots[run.job.name])))
            for run in planned(name)
        ]
        todo = [run for run in runs if not run.kept.exists()]
        print(f"{name}: {len(todo)} of {len(runs)} runs to do", flush=True)
        run_all(todo, options.side_by_side, options.folder)
        tables.write()
        archive.pack(KEPT)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("names", nargs="*", choices=[*STAGES, "table", []], metavar="NAME")
    parser.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of unfinished runs")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the data files")
    parser.add_argument(
        "--plan", action="store_true", help="print the remaining runs, without running them"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
