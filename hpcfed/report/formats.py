"""Formats of a table of results: text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from hpcfed.core.errors import printable
from hpcfed.core.paths import output

TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{c: f"${c}$" for c in "<>|"},
    **{c: f"\\{c}" for c in "&%$#_{}"},
}
MINUS = re.compile(r"(?<![\w.\-])-(?=\d)")  # not a hyphen in a name or a date


@dataclass
class Shown:
    """One cell of a table.

    text, std: as shown.
    note: a remark about it.
    mean, deviation: in full, in the unit of the caption.
    seeds: number of runs that count.
    seed_numbers: their seeds, in order.
    runs: number of all runs.
    paper: the number that a paper has in its place, as printed there.
    places: decimals of the text.
    """

    text: str
    std: str
    note: str
    mean: float | None = None
    deviation: float | None = None
    seeds: int = 0
    runs: int = 0
    best: bool = False
    paper: str = ""
    seed_numbers: tuple[int, ...] = ()
    places: int = 0

    def equals(self, other: Shown) -> bool:
        """Return whether two means are equal in the decimals that both show."""
        assert self.mean is not None and other.mean is not None
        places = min(self.places, other.places)
        rounded = [round(mean, places) for mean in (self.mean, other.mean)]
        return self.text == other.text or rounded[0] == rounded[1]

    def number(self, pm: str = "±") -> str:
        return f"{self.text} {pm} {self.std}" if self.std else self.text

    def with_note(self, number: str) -> str:
        content = f"{number} ({self.note})" if self.note and number else self.note or number
        return f"{content} [{self.paper}]" if self.paper else content


@dataclass(frozen=True)
class Grid:
    """The complete table.

    value: name of the value of the cells.
    down, across: fields of rows and columns.
    rows, heads: their values.
    notes: text below it.
    best: "row" or "column" of which marked cells are the best.
    spoken: whether fields and values are text already.
    """

    caption: str
    value: str
    down: list[str]
    across: list[str]
    rows: list[tuple[str, ...]]
    heads: list[tuple[str, ...]]
    cells: list[list[Shown]]
    notes: list[str]
    best: str = "column"
    spoken: bool = False

    def labels(self) -> list[str]:
        """Return the labels of the rows: `fedprox, mu=0.1`."""
        return [", ".join(filter(None, self.words(self.down, row))) for row in self.rows]

    def words(self, fields: list[str], values: tuple[str, ...]) -> list[str]:
        pairs = zip(fields, values, strict=True)
        return [
            printable(value) if self.spoken or not value else label_value(field, value)
            for field, value in pairs
        ]

    def corner(self) -> str:
        if self.spoken:
            return ", ".join(self.down)
        return (
            "method"
            if self.down[0] == "algorithm.name"
            else ", ".join(f.rpartition(".")[2] for f in self.down)
        )

    def levels(self) -> list[list[str]]:
        """Return the lines of heads over the columns, outermost first."""
        heads = [self.words(self.across, head) for head in self.heads]
        return [list(level) for level in zip(*heads, strict=True)] or [[self.value]]

    def any_best(self) -> bool:
        return any(cell.best for row in self.cells for cell in row)

    def full_caption(self, mark: str) -> str:
        return (
            f"{self.caption}. {mark}: best of its {self.best}."
            if self.any_best()
            else f"{self.caption}."
        )


def label_value(field: str, value: str) -> str:
    """Return a value, with the name of its field unless it is clear without."""
    value = printable(value)
    short = field.rpartition(".")[2]
    if short in ("name", "partition", "mix"):
        return value
    return f"{value} client{'s' * (value != '1')}" if field == "clients" else f"{short}={value}"


def text(grid: Grid) -> str:
    """Return aligned columns for a terminal."""
    lines = [["", *once(level, grid.heads, i)] for i, level in enumerate(grid.levels())]
    lines[-1][0] = grid.corner()
    for label, row in zip(grid.labels(), grid.cells, strict=True):
        lines.append([label, *(cell.with_note(cell.number() + " *" * cell.best) for cell in row)])
    return align_columns(grid.full_caption("*"), lines, grid.notes)


def align_columns(caption: str, lines: Sequence[Sequence[str]], notes: list[str]) -> str:
    """Return caption, columns of even width, and notes."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([caption, "", *padded, *(["", *notes] if notes else [])])


def once(level: list[str], heads: list[tuple[str, ...]], depth: int) -> list[str]:
    """Return a line of heads, with each word at the first of its columns."""
    same = [i > 0 and heads[i][: depth + 1] == heads[i - 1][: depth + 1] for i in range(len(heads))]
    return ["" if again else word for again, word in zip(same, level, strict=True)]


def markdown(grid: Grid) -> str:
    """Return a Markdown table, with the lines of heads joined to one."""
    heads = [", ".join(words) for words in zip(*grid.levels(), strict=True)]
    lines = [[grid.corner(), *heads]]
    for label, row in zip(grid.labels(), grid.cells, strict=True):
        lines.append(
            [
                label,
                *(
                    cell.with_note(f"**{cell.number()}**" if cell.best else cell.number())
                    for cell in row
                ),
            ]
        )
    return markdown_table(grid.full_caption("Bold"), lines, grid.notes)


def markdown_table(caption: str, lines: Sequence[Sequence[str]], notes: list[str]) -> str:
    """Return the lines as a Markdown table; the first line is the head."""
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    rows = ["| " + " | ".join(word.replace("|", r"\|") for word in line) + " |" for line in ruled]
    return "\n".join(
        [caption, "", *rows, *(["", *(f"- {note}" for note in notes)] if notes else [])]
    )


def latex(grid: Grid) -> str:
    """Return a LaTeX table for the package booktabs, with heads that span their columns."""
    heads = [line for i, level in enumerate(grid.levels()) for line in spans(grid, i, level)]
    body = [
        [tex(label), *map(tex_cell, row)]
        for label, row in zip(grid.labels(), grid.cells, strict=True)
    ]
    return booktabs(grid.full_caption("Bold"), heads, body, grid.notes)


def booktabs(
    caption: str, heads: list[str], body: Sequence[Sequence[str]], notes: list[str]
) -> str:
    """Return a LaTeX table of these lines.

    heads: complete lines.
    body: cells. Both are LaTeX already; caption and notes are not.
    """
    lines = [" & ".join(line) + r" \\" for line in body]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            *(f"% {note}" for note in notes),
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{tex(caption)}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(body[0]) - 1)}}}",
            r"\toprule",
            *heads,
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def spans(grid: Grid, depth: int, level: list[str]) -> list[str]:
    """Return one line of heads, and the rules below heads that span several columns."""
    groups = [
        len(list(group)) for _, group in groupby(grid.heads, key=lambda head: head[: depth + 1])
    ]
    starts = [sum(groups[:i]) for i in range(len(groups))]
    words = [tex(level[start]) for start in starts]
    corner = tex(grid.corner()) if depth == max(0, len(grid.across) - 1) else ""
    cells = [
        rf"\multicolumn{{{n}}}{{c}}{{{word}}}" if n > 1 else word
        for n, word in zip(groups, words, strict=True)
    ]
    rules = [
        rf"\cmidrule(lr){{{s + 2}-{s + n + 1}}}"
        for s, n in zip(starts, groups, strict=True)
        if n > 1
    ]
    return [" & ".join([corner, *cells]) + r" \\", *([" ".join(rules)] if rules else [])]


def tex_cell(cell: Shown) -> str:
    number = tex(cell.number())
    return replace(cell, paper=tex(cell.paper)).with_note(
        rf"\textbf{{{number}}}" if cell.best else number
    )


def tex(words: str) -> str:
    """Return text as LaTeX, with minus signs before numbers."""
    return MINUS.sub("$-$", "".join(TEX.get(c, c) for c in words))


def to_csv(grid: Grid) -> str:
    """Return a CSV line for each cell, with the numbers in full."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    paper_column = ["paper"] if any(cell.paper for line in grid.cells for cell in line) else []
    lines.writerow(
        [
            *grid.down,
            *grid.across,
            "mean",
            "deviation",
            "seeds",
            "runs",
            "best",
            "note",
            *paper_column,
        ]
    )
    for row, line in zip(grid.rows, grid.cells, strict=True):
        for head, cell in zip(grid.heads, line, strict=True):
            numbers = (
                "" if number is None else repr(number) for number in (cell.mean, cell.deviation)
            )
            about = [
                cell.seeds,
                cell.runs,
                int(cell.best),
                cell.note,
                *([cell.paper] if paper_column else []),
            ]
            lines.writerow([*row, *head, *numbers, *about])
    return out.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[Grid], str]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "csv": to_csv,
}


def save_or_return(text: str, out: Path | None) -> str:
    """Return the text, or write it to a file and return that file's path."""
    if out is None:
        return text
    with output(out, "the table"):
        out.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    return str(out)
