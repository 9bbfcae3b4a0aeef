"""The built pages: they show what they must, and fetch nothing from anywhere.

`make docs` runs this after it has built them in build/docs.
"""

import json
import re
from pathlib import Path

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.config.fields import field_names
from hpcfed.config.job import Job

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build/docs"
CASES = sorted({path.stem for path in (ROOT / "docs/pages/cases").glob("*.md")} - {"index"})
PRINTED = {  # what the page of a case must show
    "hospital": "probability_yes",
    "survival": "risk",
    "texts": "[1 0]",
    "sensors": "mean accuracy of the clients: ",
    "method": "Ours",
    "slurm": "#SBATCH --nodes=2",
}
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]* src=[\"']?(?:https?:)?//"
    r"|<link[^>]* rel=[\"']?(?:stylesheet|preload|preconnect|icon)[^>]* href=[\"']?(?:https?:)?//"
    r"|url\([\"']?(?:https?:)?//|@import"
)


def test_notebooks_are_pages_with_the_output_of_their_cells():
    first, own = ((SITE / f"notebooks/{name}.html").read_text() for name in ("first", "own"))
    assert "data:image/png;base64," in first and "10 of 10" not in first and "8 of 8" in first
    assert "lgfedavg" in own and "95 % confidence intervals" in own
    for name in ("first", "own"):
        cells = json.loads((SITE / f"notebooks/{name}.ipynb").read_text())["cells"]
        assert [cell for cell in cells if cell.get("outputs")] == []  # made by the build alone


@pytest.mark.parametrize("name", CASES)
def test_a_worked_case_runs_and_ends_in_a_figure(name):
    page = (SITE.parent / f"pages/cases/{name}.md").read_text()
    assert "](data:image/png;base64," in page.splitlines()[-1]
    assert PRINTED.get(name, "") in page


def test_every_algorithm_has_a_page_and_every_field_its_place():
    assert {path.stem for path in (SITE / "algorithms").glob("*.html")} == {*ALGORITHMS, "index"}
    names = [name.replace(".", "-") for name in field_names(Job) if name != "algorithm"]
    text = (SITE / "reference/job.html").read_text()
    assert [name for name in names if f'id="{name}"' not in text] == []


def test_a_methods_page_starts_with_a_complete_sentence():
    """Also where that takes two lines of the docstring."""
    text = (SITE / "algorithms/fedprox.html").read_text()
    assert "the partial work of stragglers counts." in text and "<p>counts." not in text


def test_authors_of_hooks_are_shown_no_internals():
    shown = set(re.findall(r'<h3 id="([^"]+)"', (SITE / "extend/hooks.html").read_text()))
    assert {"receive", "local", "mean", "run", "stream", "borrowed", "params"} <= shown
    internal = {"parcel", "hand_over", "restore", "spread", "keeping", "joint", "skeleton", "usual"}
    assert shown & internal == set()
    text = (SITE / "extend/hooks.html").read_text()
    assert "A context manager: <code>with ….borrowed() as client:</code>" in text


def test_the_pages_fetch_nothing_from_anywhere():
    texts = [*SITE.rglob("*.html"), *SITE.rglob("*.css")]
    assert len(texts) > len(ALGORITHMS)
    assert {
        path.name: matches for path in texts if (matches := FETCHED.findall(path.read_text()))
    } == {}
