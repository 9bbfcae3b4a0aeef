"""Disks without room."""

from pathlib import Path


def fill(filler: Path) -> None:
    """Let this file take all the room that is left on its disk."""
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
