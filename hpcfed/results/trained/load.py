"""`hpcfed.load_model`: one client's trained model, from a run or from a file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.core.errors import ConfigError
from hpcfed.models import files

if TYPE_CHECKING:
    from hpcfed.models.trained import Trained


def load_model(source: str | Path, client: int | None = None, own: Collection[str] = ()) -> Trained:
    """Return client k's model, in eval mode, on the CPU; see `hpcfed.load_model`."""
    path, read = Path(source), from_file if Path(source).suffix == files.ENDING else from_run
    return read(path, client, own)


def from_file(path: Path, client: int | None, allowed: Collection[str]) -> Trained:
    """Return the model in a file that `hpcfed models` wrote.

    Raises ConfigError if it is of another client than the one asked for.
    """
    model = files.read(path, allowed)
    if client not in (None, model.about.client):
        raise ConfigError(
            f"{path}: is the model of client {model.about.client}, not of client {client}"
        )
    return model


def from_run(path: Path, client: int | None, allowed: Collection[str]) -> Trained:
    """Return the model in the newest undamaged checkpoint of a run."""
    from hpcfed.results.trained.from_checkpoint import Saved, from_newest
    from hpcfed.storage import names

    if client is None:
        raise ConfigError(f"{path}: say whose model, as in load_model({str(path)!r}, client=0)")
    run = names.folder_of(path)
    return from_newest(run, lambda source: Saved(run, source, [client], allowed).model(client))
