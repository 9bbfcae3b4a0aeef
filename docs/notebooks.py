"""Notebooks as pages: their cells are run, in a folder of their own, whenever the documentation is
built.

`python notebooks.py FILE.ipynb` prints the page.
"""

import ast
import base64
import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from text import joined

FOLDER = Path(__file__).parent / "pages" / "notebooks"
LIMIT = 300  # seconds


def page(name: str) -> str:
    """The page of a notebook, with what its cells print and show. RuntimeError where one fails."""
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, str(FOLDER / f"{name}.ipynb")],
            cwd=folder,
            env=os.environ | {"MPLBACKEND": "Agg", "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    if done.returncode:
        raise RuntimeError(f"{name}.ipynb: {done.stderr}")
    return done.stdout


def execute(notebook: dict[str, Any]) -> str:
    """The cells one after the other, as in a notebook, in Markdown."""
    space: dict[str, Any] = {"__name__": "__main__"}
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts += [f"```python\n{source}\n```", outcome(source, space)]
    return joined(*parts)


def outcome(source: str, space: dict[str, Any]) -> str:
    """What a cell prints, and what its last line is."""
    if source.startswith("!"):  # a command of the shell, as notebooks have it
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            source[1:],
            shell=True,
            env=os.environ | {"PATH": path},
            check=True,
            capture_output=True,
            text=True,
        )
        return f"```text\n{done.stdout.rstrip()}\n```"
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
    text = printed.getvalue().rstrip()
    return joined(f"```text\n{text}\n```" if text else "", shown(value))


def shown(value: Any) -> str:
    """A value as a notebook shows it: a picture, a table, or its text."""
    if value is None:
        return ""
    if hasattr(value, "savefig"):
        raw = io.BytesIO()
        value.savefig(raw, format="png", dpi=90)
        data = base64.b64encode(raw.getvalue()).decode()
        return f"![what the cell shows](data:image/png;base64,{data})"
    if hasattr(value, "_repr_html_"):
        # without pandas' own class and border it looks as the tables of the pages do
        return value._repr_html_().replace(' border="1" class="dataframe"', "")
    return f"<pre>{escape(repr(value))}</pre>"


if __name__ == "__main__":
    print(execute(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
