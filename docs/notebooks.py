"""Notebooks as pages: their cells are run whenever the documentation is built (`cases.py`)."""

import ast
import base64
import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from html import escape
from pathlib import Path
from typing import Any

from text import joined

FOLDER = Path(__file__).parent / "pages" / "notebooks"


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
