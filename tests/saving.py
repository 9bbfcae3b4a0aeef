"""Saving of a run at once, for tests."""

from pathlib import Path

from hpcfed.core.errors import WriteError, everywhere
from hpcfed.engine.fault_tolerance.background_save import BackgroundSave
from hpcfed.engine.rounds import Rounds


def save(rounds: Rounds, run: Path) -> None:
    """Write a checkpoint, and wait for it; collective. Raises WriteError if the disk refuses it."""
    with BackgroundSave(rounds, run) as saver:
        saver.start()
        if error := saver.finish():
            raise everywhere(WriteError(error))
