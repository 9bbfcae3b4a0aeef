"""Several runs one after the other in the same process, as each rank of `several.together` makes
them.

`attempts.py CASES.json FOLDER` writes the outcome of each command line to FOLDER.
"""

import gc
import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    gc.disable()  # as `python -m hpcfed.main` begins

from hpcfed.main import main


@dataclass(frozen=True)
class Outcome:
    """What one rank returned and wrote."""

    status: int
    out: str
    err: str


def outcome_file(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name}.{rank}.json"


def attempt(words: list[str]) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return Outcome(status, out.getvalue(), err.getvalue())


def work(cases: dict[str, list[str]], folder: Path, rank: int) -> None:
    for name, words in cases.items():
        outcome_file(folder, name, rank).write_text(json.dumps(asdict(attempt(words))))


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    work(
        json.loads(Path(sys.argv[1]).read_text()),
        Path(sys.argv[2]),
        int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)),
    )
