"""Each worked case of the documentation runs and ends in a figure."""

import pytest

from tests.documentation import documentation_module
from tests.mpirun import ROOT
from tests.system.test_readme import SMALL_MACHINE

NAMES = sorted(path.stem for path in (ROOT / "docs/pages/cases").glob("*.md"))
PRINTED = {  # what the page of a case must show of its own
    "hospital": "probability_yes",
    "survival": "risk",
    "texts": "['1' '0']",
    "sensors": "mean accuracy of the clients: ",
    "method": "Ours",
    "slurm": "#SBATCH --nodes=2",
}


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for name, value in SMALL_MACHINE.items():
        monkeypatch.setenv(name, value)
    with documentation_module("cases") as module:
        yield module


@pytest.mark.parametrize("name", [name for name in NAMES if name != "index"])
def test_a_case_runs_and_ends_in_a_figure(cases, name, tmp_path):
    page = cases.execute(name, tmp_path)
    assert "](data:image/png;base64," in page.splitlines()[-1]
    assert PRINTED.get(name, "") in page
