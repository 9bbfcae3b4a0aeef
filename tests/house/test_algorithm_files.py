"""An algorithm is one short file that is registered, cites its paper and stands alone."""

import ast
import re

from hpcfed.algorithms import ALGORITHMS
from hpcfed.report.references import references
from tests.house import source

SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}|doi:10\.")
WITHOUT = re.compile(r"baseline|upper bound")  # what a file without a paper says it is


def test_every_method_has_a_file_of_its_name_in_the_folder_of_its_kind():
    wrong = []
    for name, entry in ALGORITHMS.items():
        module, _, cls = entry.target.partition(":")
        kind, file = module.removeprefix("hpcfed.algorithms.").split(".")
        wrong += [] if file == name == cls.lower() and kind and entry.line else [entry.target]
    assert wrong == []


def test_each_names_its_paper_and_its_deviations_or_says_that_it_is_a_baseline():
    known = references()
    wrong = []
    for path in source.ALGORITHMS:
        text, entry = ast.get_docstring(source.tree(path)), ALGORITHMS[path.stem]
        if entry.cite:
            right = SOURCE.search(text) and "Deviations:" in text
            right = right and set(entry.cite.split(",")) <= set(known)
        else:
            right = WITHOUT.search(text)
        wrong += [] if right else [path.stem]
    assert wrong == []


def test_none_uses_another_method():
    """What several methods share stands in a module of its own, in their folder or in training."""
    methods = {source.module(path) for path in source.ALGORITHMS}
    used = {
        path.stem: source.imports(path) & methods - {source.module(path)}
        for path in source.ALGORITHMS
    }
    assert {stem: others for stem, others in used.items() if others} == {}


def test_none_sees_a_rank_a_device_or_a_file():
    allowed = {"algorithms", "core", "training", "data", "models", "clients"}
    hidden = {"rank", "comm", "placement", "cuda", "open"}
    wrong = {}
    for path in source.ALGORITHMS:
        parts = {full.split(".")[1] for full in source.imports(path) if full.startswith("hpcfed.")}
        nodes = ast.walk(source.tree(path))
        words = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & hidden
        if parts - allowed or words:
            wrong[path.stem] = (parts - allowed) | words
    assert wrong == {}
