"""An algorithm is one short file that is registered, cites its paper and stands alone."""

import ast
import re

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.report.references import references
from tests.house import source

SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}|doi:10\.")
WITHOUT = re.compile(r"baseline|upper bound")  # what a file without a paper says it is
each_file = pytest.mark.parametrize("path", source.ALGORITHMS, ids=lambda path: path.stem)


def test_every_file_is_registered_and_every_name_has_its_file():
    assert set(ALGORITHMS) == {path.stem for path in source.ALGORITHMS}
    for name, entry in ALGORITHMS.items():
        module, _, cls = entry.target.partition(":")
        assert (module, cls.lower()) == (f"hpcfed.algorithms.{name}", name)
        assert entry.line and {
            base.__module__.split(".")[-1] for base in entry.load().__bases__
        } <= set(source.KINDS)


@each_file
def test_it_names_its_paper_and_its_deviations_or_says_that_it_is_a_baseline(path):
    text = ast.get_docstring(source.tree(path))
    entry = ALGORITHMS[path.stem]
    if entry.cite:
        assert SOURCE.search(text) and "Deviations:" in text
        assert set(entry.cite.split(",")) <= set(references())
    else:
        assert WITHOUT.search(text)


@each_file
def test_it_uses_no_other_algorithm(path):
    others = {full for full in source.imports(path) if full.startswith("hpcfed.algorithms")}
    assert others and others <= {f"hpcfed.algorithms.{kind}" for kind in source.KINDS}


@each_file
def test_it_sees_no_rank_device_or_file(path):
    parts = {full.split(".")[1] for full in source.imports(path) if full.startswith("hpcfed.")}
    assert parts <= {
        "algorithms",
        "params",
        "training",
        "rng",
        "errors",
        "data",
        "models",
        "client",
    }
    words = {node.attr for node in ast.walk(source.tree(path)) if isinstance(node, ast.Attribute)}
    assert words & {"rank", "comm", "placement", "cuda", "open"} == set()
