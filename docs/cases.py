"""The worked cases: pages whose blocks are run in order, and which show what these print and draw.

`python cases.py FOLDER` runs all cases and all notebooks in one process, and writes their pages to
FOLDER/cases and FOLDER/notebooks.
"""

import io
import json
import re
import shlex
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import notebooks
from notebooks import outcome
from text import joined

from hpcfed import cli

FOLDER = Path(__file__).parent / "pages" / "cases"
NAMES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")
BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>.+?)")?\n(?P<source>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)


def execute(name: str, folder: Path) -> str:
    """Run the blocks of a case in a folder and return its page. RuntimeError if a command fails."""
    space: dict[str, Any] = {"__name__": "__main__"}

    def shown(block: re.Match[str]) -> str:
        source = block["source"]
        if block["title"]:
            (folder / block["title"]).write_text(source)
            return block[0]
        if block["language"] == "python":
            return joined(block[0], outcome(source, space)).rstrip()
        return joined(block[0], *(command(line) for line in source.splitlines())).rstrip()

    with chdir(folder):
        return BLOCK.sub(shown, (FOLDER / f"{name}.md").read_text())


def command(line: str) -> str:
    """Run a line of the shell in this process, and return what it prints as a block."""
    printed, words = io.StringIO(), shlex.split(line)
    with redirect_stdout(printed):
        if words[0] != "hpcfed" or cli.main(words[1:]):
            raise RuntimeError(f"{line}: {printed.getvalue()}")
    text = printed.getvalue().strip()
    return f"```text\n{text}\n```" if text else ""


def write(pages: Path) -> None:
    """Run all cases and notebooks, each in a folder of its own, and write their pages."""
    for name in NAMES:
        with TemporaryDirectory() as folder:
            (pages / "cases" / f"{name}.md").write_text(execute(name, Path(folder)))
    for path in sorted(notebooks.FOLDER.glob("*.ipynb")):
        with TemporaryDirectory() as folder, chdir(folder):
            page = notebooks.execute(json.loads(path.read_text(encoding="utf-8")))
        (pages / "notebooks" / f"{path.stem}.md").write_text(page)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
