"""Saving of a run at once, and a disk that refuses files, for tests."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcfed.core.errors import WriteError, everywhere
from hpcfed.engine.fault_tolerance.background_save import BackgroundSave
from hpcfed.engine.rounds import Rounds
from hpcfed.storage import atomic


def save(rounds: Rounds, run: Path) -> None:
    """Write a checkpoint, and wait for it; collective. Raises WriteError if the disk refuses it."""
    with BackgroundSave(rounds, run) as saver:
        saver.start()
        if error := saver.finish():
            raise everywhere(WriteError(error))


def refusing(monkeypatch: pytest.MonkeyPatch, number: int, when: Callable[[Path], bool]) -> None:
    """Let the disk refuse files with this error, as long as that is so."""
    sealed = atomic.write_checksum

    def write_checksum(raw) -> None:
        if when(Path(raw.name)):
            raise OSError(number, os.strerror(number))
        sealed(raw)

    monkeypatch.setattr(atomic, "write_checksum", write_checksum)
