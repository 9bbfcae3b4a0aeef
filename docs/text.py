"""Docstrings and values as Markdown."""

import re
from collections.abc import Iterable, Sequence
from inspect import cleandoc

CODE = re.compile(r"(`[^`]*`)")
MARKS = re.compile(r"([\\*_\[\]{}#])")
PAPERS = (
    (re.compile(r"arXiv:(\d{4}\.\d{4,5})"), r"[arXiv:\1](https://arxiv.org/abs/\1)"),
    (re.compile(r"doi:(10\.[^\s,;]+[^\s,;.])"), r"[doi:\1](https://doi.org/\1)"),
)


def prose(text: str | None) -> str:
    """A docstring as Markdown: what it has in backticks is code, papers are links, all else is as
    it stands.
    """
    parts = CODE.split(cleandoc(text or ""))
    return "".join(part if part.startswith("`") else linked(escaped(part)) for part in parts)


def sentence(text: str) -> str:
    """Text that begins with a capital."""
    return text[:1].upper() + text[1:]


def escaped(text: str) -> str:
    """Text without code, so that nothing of it means anything to Markdown."""
    return MARKS.sub(r"\\\1", text).replace("<", "&lt;")


def linked(text: str) -> str:
    """Identifiers of papers as links."""
    for pattern, link in PAPERS:
        text = pattern.sub(link, text)
    return text


def cell(value: object) -> str:
    """One cell of a table, in one line."""
    return " ".join(str(value).split()).replace("|", "&#124;")


def code(value: object) -> str:
    """A value as code in a cell; nothing for nothing."""
    value = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"`{cell(value)}`" if str(value) else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are Markdown already."""
    lines = [head, ["---"] * len(head), *([cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def block(text: str, language: str = "") -> str:
    """A block of code."""
    return f"```{language}\n{text.strip()}\n```\n"


def folded(title: str, body: str) -> str:
    """A part of a page that is closed until it is clicked."""
    return f'??? note "{title}"\n' + "".join(
        f"    {line}\n" if line else "\n" for line in body.splitlines()
    )


def anchored(name: str, anchor: str) -> str:
    """Code that links may point to."""
    return f"`{name}`{{ #{anchor} }}"


def joined(*parts: str) -> str:
    """The parts of a page, apart from one another; empty ones are left out."""
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"
