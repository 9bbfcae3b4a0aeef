"""Files are documented, and speak of the project alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import PACKAGE, ROOT, calls, name, tree

FOLDERS = ("hpcfed", "tests", "jobs", "benchmarks", "slurm", "docs", ".ci")
ENDINGS = {
    "",
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".bib",
    ".sh",
    ".sbatch",
    ".json",
    ".cfg",
    ".svg",
    ".yml",
    ".css",
}
FOREIGN = re.compile(
    r"(?<![\w.])/(?:work|root|tmp)\b"  # folders of one machine
    r"|index-url|find-links|\bpypi\."  # where packages come from is each machine's own business
    r"|\b(?:AI|LLMs?|Claude|Anthropic|OpenAI|[Cc]hatbot)\b|GPT"
)
SHORT = 18  # lines of a function whose name may say it all
PROSE = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
TEXTS = sorted(
    p
    for p in PROSE
    if p.is_file() and p.suffix in ENDINGS and not {"__pycache__", ".git"} & set(p.parts)
)


def undocumented(node: ast.AST, inherited: bool = False) -> Iterator[str]:
    """Public classes, and public functions that are neither short nor declared by a base class,
    without a docstring.
    """
    for child in getattr(node, "body", []):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from [] if ast.get_docstring(child) else [child.name]
            yield from undocumented(child, inherited=bool(child.bases))
        elif (
            isinstance(child, ast.FunctionDef) and not child.name.startswith("_") and not inherited
        ):
            long = child.end_lineno - child.lineno + 1 > SHORT
            yield from [child.name] if long and not ast.get_docstring(child) else []


def test_modules_classes_and_functions_have_docstrings():
    silent = [name(path) for path in PACKAGE if not ast.get_docstring(tree(path))]
    silent += [f"{name(path)}: {what}" for path in PACKAGE for what in undocumented(tree(path))]
    assert silent == []


SAFE = {"printable", "plain", "format_error", "json.dumps", "MARK + json.dumps"}


def unsafe(path: Path) -> Iterator[str]:
    """Calls of `print` of a file that print what may have come from outside as it is."""
    for called, node in calls(path):
        if called == "print" and not isinstance(text := node.args[0], ast.Constant | ast.Name):
            how = ast.unparse(text).partition("(")[0]
            shown = isinstance(text, ast.JoinedStr) and all(
                ast.unparse(part.value).partition("(")[0] in SAFE
                for part in text.values
                if isinstance(part, ast.FormattedValue)
            )
            if not shown and how not in SAFE:
                yield f"{name(path)}:{node.lineno}"


def test_all_that_is_printed_is_made_printable():
    assert [place for path in PACKAGE for place in unsafe(path)] == []


def test_texts_speak_of_the_project_alone():
    this_file = Path(__file__).resolve()
    places = {
        name(path): FOREIGN.findall(path.read_text(encoding="utf-8"))
        for path in TEXTS
        if path != this_file
    }
    assert {path: words for path, words in places.items() if words} == {}


QUOTED = re.compile(r"`([\w./*]+\.(?:py|md|toml))\b(?::\s+([\w.]+)`)?")  # and a name in it


def test_every_file_that_contributing_names_is_there_and_has_the_name_that_follows():
    """A path begins at the root, in hpcfed, in tests, or, in the table of rooms, in its room."""
    lost = []
    # a row of the table, or a paragraph, whose lines may break within a reference
    for part in re.split(r"\n\n|\n(?=\|)", (ROOT / "CONTRIBUTING.md").read_text()):
        bases = [
            ROOT,
            ROOT / "hpcfed",
            ROOT / "tests",
            ROOT / "tests/unit",
            ROOT / "tests/contract",
        ]
        if row := re.match(r"\| `(\w+/)`", part):
            bases = [ROOT / "hpcfed" / row[1], ROOT]
        for path, symbol in QUOTED.findall(part):
            files = [file for base in bases for file in base.glob(path)]
            if "NAME" not in path and not (
                files and all(any(defines(file, n) for file in files) for n in symbol.split("."))
            ):
                lost.append((path, symbol))
    assert lost == []


def defines(file: Path, symbol: str) -> bool:
    """Whether a file has a class, function or variable of this name; any has the name ""."""
    nodes = ast.walk(tree(file)) if symbol else ()
    return not symbol or any(
        symbol == (node.id if isinstance(node, ast.Name) else node.name)
        for node in nodes
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
