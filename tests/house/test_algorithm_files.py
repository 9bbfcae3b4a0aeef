"""An algorithm is one short file that is registered, cites its paper and stands alone."""

import ast
import re
from types import FunctionType

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms.base import Method, RoundBased
from hpcfed.algorithms.events import EventBased
from hpcfed.report.references import references
from tests.house import source

PAGE = source.ROOT / "docs/pages/extend/algorithm.md"
MOST = 17  # hooks of a method
LONELY = {"cohort", "near", "seconds", "work"}  # that fewer than two methods replace yet
SOURCE = re.compile(r"arXiv:\d{4}\.\d{4,5}|doi:10\.")
TYPES = {  # what a method is written with, of rooms that it does not see otherwise
    "hpcfed.config.conditions",
    "hpcfed.config.job",
    "hpcfed.config.limits",
    "hpcfed.federation.federation",
    "hpcfed.federation.upload",
}
WITHOUT = re.compile(r"baseline|upper bound")  # what a file without a paper says it is


def test_every_method_has_a_file_of_its_name_in_the_folder_of_its_kind():
    wrong = []
    for name, entry in ALGORITHMS.items():
        module, _, cls = entry.target.partition(":")
        kind, file = module.removeprefix("hpcfed.algorithms.").split(".")
        wrong += [] if file == name == cls.lower() and kind and entry.line else [entry.target]
    assert wrong == []


def test_each_names_its_paper_and_its_deviations_or_says_that_it_is_a_baseline():
    keys = references()
    wrong = []
    for path in source.ALGORITHMS:
        text, entry = ast.get_docstring(source.tree(path)), ALGORITHMS[path.stem]
        if entry.cite:
            right = SOURCE.search(text) and "Deviations:" in text
            right = right and set(entry.cite.split(",")) <= set(keys)
        else:
            right = WITHOUT.search(text)
        wrong += [] if right else [path.stem]
    assert wrong == []


def test_none_sees_a_rank_a_device_or_a_file():
    allowed = {"algorithms", "core", "training", "data", "models", "clients"}
    hidden = {"rank", "comm", "placement", "cuda", "open"}
    wrong = {}
    for path in source.ALGORITHMS:
        rooms = source.imports(path) - TYPES
        parts = {full.split(".")[1] for full in rooms if full.startswith("hpcfed.")}
        nodes = ast.walk(source.tree(path))
        words = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & hidden
        if parts - allowed or words:
            wrong[path.stem] = (parts - allowed) | words
    assert wrong == {}


def test_no_method_and_no_transform_works_in_another_way_in_a_trial():
    """A trial makes clients, loops and the transforms small instead (`Transform.of_trial`)."""
    folders = ("algorithms", "federation/transforms")
    files = [path for f in folders for path in (source.ROOT / "hpcfed" / f).rglob("*.py")]
    asking = {
        path.stem
        for path in files
        for node in ast.walk(source.tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "trial"
    }
    # the trial itself; principal components of all public images, which take seconds
    assert asking == {"trial", "image_decoder"}


def hooks(*classes: type) -> set[str]:
    """What a method may replace; `weight` and `train` are there to be called."""
    called = {"weight", "train"}
    return {
        name
        for cls in classes
        for name, value in vars(cls).items()
        if isinstance(value, FunctionType) and not name.startswith("_") and name not in called
    }


def users(name: str) -> set[type]:
    """The classes that replace a hook, of all registered methods."""
    kinds = {Method, RoundBased, EventBased}
    classes = {c for entry in ALGORITHMS.values() for c in entry.load().__mro__}
    return {c for c in classes - kinds if name in vars(c)}


def test_a_method_has_at_most_seventeen_hooks_each_of_which_two_methods_replace():
    assert len(hooks(Method, RoundBased)) <= MOST
    assert len(hooks(Method, EventBased)) <= MOST
    every = hooks(Method, RoundBased, EventBased)
    assert {name for name in every if len(users(name)) < 2} <= LONELY


def test_the_page_about_methods_of_ones_own_has_each_hook():
    rows = re.findall(r"^\|[^|]*\| `(\w+)\(", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(hooks(Method, RoundBased))


def test_each_reference_is_complete_and_has_its_own_key():
    text = (source.ROOT / "hpcfed/report/references.bib").read_text()
    keys = re.findall(r"^@\w+\{([^,]+),", text, re.MULTILINE)
    assert sorted(keys) == sorted(set(keys)) and set(keys) == set(references())
