"""How fast a run is under way: 15 ranks to their first step, against 15 plain processes that import
torch.

`python benchmarks/startup.py [--ranks 15] [--passes 2]`

Both do so on the same cores, in turns. The run is timed to its end: one step of one small client on
each rank, evaluation, and the checkpoint and picture at the end of a run, so it is an upper bound
of the first step.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from cases import GREY, examples, folder
from launch import ROOT, on_ranks
from paired import Row, interleaved, ratio, save

JOB = (
    "--rounds",
    "1",
    "--local.steps",
    "1",
    "--models.mix",
    "cnn",
    "--algorithm.name",
    "fedavg",
    "--quiet",
    "true",
    "--data.partition",
    "iid",
    "--local.augment",
    "none",
    "--evaluate.before",
    "false",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=15)
    parser.add_argument("--passes", type=int, default=2)
    options = parser.parse_args()
    turns = {"run": partial(first_step, options.ranks), "import": partial(plain, options.ranks)}
    save(
        "startup",
        [start(options.ranks, interleaved(turns, options.passes, warm=1)), listing(options.passes)],
    )


def start(ranks: int, seconds: dict[str, list[float]]) -> Row:
    what = f"{ranks} ranks to the end of their first step, over {ranks} processes that import torch"
    return Row(
        what, ratio(seconds["run"], seconds["import"]), most=1.5, details={"seconds": seconds}
    )


def listing(passes: int) -> Row:
    """`hpcfed list` in units of its limit."""
    command = [sys.executable, "-m", "hpcfed.cli", "list"]
    run = partial(subprocess.run, command, cwd=ROOT, check=True, capture_output=True)
    seconds = interleaved({"list": run}, max(passes, 5))["list"]
    return Row("`hpcfed list`, seconds over 0.5", ratio(seconds, [0.5] * len(seconds)), most=1.0)


def first_step(ranks: int) -> None:
    out, data = Path(mkdtemp(dir=folder().name)), examples(GREY, 60 * ranks)
    flags = (
        "--clients",
        str(ranks),
        "--data.name",
        str(data),
        "--out",
        str(out),
        "--overwrite",
        "true",
    )
    on_ranks(ranks, "-m", "hpcfed.main", *JOB, *flags)


def plain(ranks: int) -> None:
    """The processes run side by side, as ranks do."""
    commands = [subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(ranks)]
    if any([process.wait() for process in commands]):
        raise RuntimeError("a process that imports torch failed")


if __name__ == "__main__":
    main()
