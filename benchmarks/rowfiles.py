"""Rows of a table in a compressed file, each a line of JSON: `xz --decompress --stdout FILE`."""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; none if there is none."""
    if not file.exists():
        return []
    with lzma.open(file, "rt") as lines:
        return [json.loads(line) for line in lines]


def write(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file by one of these rows; the same rows give the same bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    with lzma.open(part, "wt", preset=9 | lzma.PRESET_EXTREME) as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    os.replace(part, file)
