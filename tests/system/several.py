"""Several runs one after the other in the same processes: starting Python and MPI costs more than a
small run. On one rank it is the process of the tests; several are started by mpirun.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.mpirun import ROOT, mpirun
from tests.system.attempts import Outcome, attempt, outcome_file

LIMIT = 300  # seconds for one command: a crowded machine may need minutes, a deadlock fails
COLUMNS = "500"  # so that no message has a line break
# A job of about a second: two architectures, a representation of 16, 120 examples.
SMALL = shlex.split(
    "--clients 4 --models.mix mlp,fedhenn-1 --models.d 16 --data.train_limit 120 "
    "--data.test_share 0.5 "
    "--rounds 2 --evaluate.every 1"
)


def together(
    ranks: int,
    folder: Path,
    cases: Mapping[str, list[str]],
    timeout: float = LIMIT,
) -> dict[str, list[Outcome]]:
    """The outcomes of `hpcfed.main` for each command line, by rank; fails if they take more than
    timeout seconds.
    """
    if ranks == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            patch.setenv("COLUMNS", COLUMNS)
            return {name: [attempt(words)] for name, words in cases.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    argv = [str(Path(__file__).with_name("attempts.py")), str(folder / "cases.json"), str(folder)]
    mpirun(ranks, *argv, timeout=timeout, env={"COLUMNS": COLUMNS}, cwd=ROOT)
    return {
        name: [
            Outcome(**json.loads(outcome_file(folder, name, r).read_text())) for r in range(ranks)
        ]
        for name in cases
    }
