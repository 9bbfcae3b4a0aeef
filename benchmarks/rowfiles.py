"""Rows of a table in a compressed file, each a line of JSON: `xz --decompress --stdout FILE`."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if there is none."""
    if not file.exists():
        return []
    with lzma.open(file, "rt") as lines:
        return [json.loads(line) for line in lines]


def by_key(file: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by their key."""
    return {row["key"]: row for row in read(file)}


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file by one of these rows; the same rows give the same bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    with lzma.open(part, "wt", preset=9 | lzma.PRESET_EXTREME) as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    os.replace(part, file)


def by_client(values: np.ndarray) -> list[float | None]:
    """Return the values of clients with four digits; None: a client has none."""
    return [round(float(value), 4) if np.isfinite(value) else None for value in values]
