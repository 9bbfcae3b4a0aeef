"""Several runs one after the other in the same processes: starting Python and MPI costs more than a
small run.

As a module, `together` starts them. As a program, `several.py CASES.json FOLDER` is what each rank
runs.
"""

import gc
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    gc.disable()  # as `python -m hpcfed.main` begins

from hpcfed.main import main
from tests.mpirun import ROOT, environment, mpirun

LIMIT = 300  # seconds for one command: a crowded machine may need minutes, a deadlock fails
# A job of about a second: two architectures, a representation of 16, 120 examples.
SMALL = shlex.split(
    "--clients 4 --models.mix mlp,fedhenn-1 --models.d 16 --data.train_limit 120 "
    "--data.test_share 0.5 "
    "--rounds 2 --evaluate.every 1"
)


@dataclass(frozen=True)
class Outcome:
    """What one rank returned and wrote."""

    status: int
    out: str
    err: str


def together(
    ranks: int,
    folder: Path,
    cases: Mapping[str, list[str]],
    timeout: float = LIMIT,
) -> dict[str, list[Outcome]]:
    """The outcomes of `hpcfed.main` for each command line, by rank; fails if they take more than
    timeout seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    argv = [str(Path(__file__)), str(folder / "cases.json"), str(folder)]
    if ranks == 1:
        env = {**environment({}), "COLUMNS": "500"}
        subprocess.run([sys.executable, *argv], cwd=ROOT, env=env, timeout=timeout, check=True)
    else:
        mpirun(ranks, *argv, timeout=timeout, env={"COLUMNS": "500"}, cwd=ROOT)
    return {
        name: [Outcome(**json.loads(written(folder, name, r).read_text())) for r in range(ranks)]
        for name in cases
    }


def written(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name}.{rank}.json"


def attempt(words: list[str]) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return Outcome(status, out.getvalue(), err.getvalue())


def work(cases: dict[str, list[str]], folder: Path, rank: int) -> None:
    for name, words in cases.items():
        written(folder, name, rank).write_text(json.dumps(asdict(attempt(words))))


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    work(
        json.loads(Path(sys.argv[1]).read_text()),
        Path(sys.argv[2]),
        int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)),
    )
