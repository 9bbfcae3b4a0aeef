"""Findings of probes, and their display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from hpcfed.core.tables import table

COLOURS = {"ok": "green", "warning": "yellow", "wrong": "bold red"}


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    status: "ok"; "warning" if runs work but could be better; "wrong" if runs fail or mislead.
    """

    what: str
    status: str
    found: str
    advice: str = ""


def ok(what: str, found: str, advice: str = "") -> Finding:
    return Finding(what, "ok", found, advice)


def warning(what: str, found: str, advice: str) -> Finding:
    return Finding(what, "warning", found, advice)


def wrong(what: str, found: str, advice: str) -> Finding:
    return Finding(what, "wrong", found, advice)


def is_wrong(findings: Sequence[Finding]) -> bool:
    """Return whether anything must be fixed."""
    return any(finding.status == "wrong" for finding in findings)


def render(findings: Sequence[Finding]) -> Table:
    """Return a table with a row for each finding, and the advice under it."""
    grid = table("what,,found and what to do", [])
    grid.columns[2].overflow = "fold"
    for finding in findings:
        text = Text(finding.found)
        if finding.advice:
            text.append(f"\n-> {finding.advice}", style="" if finding.status == "ok" else "bold")
        grid.add_row(Text(finding.what), Text(finding.status, style=COLOURS[finding.status]), text)
    return grid
