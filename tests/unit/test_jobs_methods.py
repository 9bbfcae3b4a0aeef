"""One job for each method, with the settings of its paper."""

from pathlib import Path

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.config.load import load

METHODS = Path(__file__).parents[2] / "jobs/methods"
FILES = sorted(METHODS.glob("*.toml"))


@pytest.mark.parametrize("method", ALGORITHMS)
def test_each_method_has_its_job(method: str):
    assert load([str(METHODS / f"{method}.toml")], environ={}).algorithm.name == method


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_job_begins_with_what_it_is(path: Path):
    assert path.read_text().startswith("# ") and load([str(path)], environ={})
