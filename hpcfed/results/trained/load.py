"""`hpcfed.load_model`: a trained model, from a run or from a file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.core.errors import ConfigError, unknown
from hpcfed.models import files

if TYPE_CHECKING:
    from hpcfed.models.predictions import Ensemble
    from hpcfed.models.trained import Trained
    from hpcfed.results.trained.from_checkpoint import Saved
    from hpcfed.storage.checkpoint import Reader

COMMON, ENSEMBLE = CHOICES = ("common", "ensemble")


def load_model(
    source: str | Path,
    client: int | str | None = None,
    own: Collection[str] = (),
    model: str = "",
    own_changed: bool = False,
) -> Trained | Ensemble:
    """Return a model, in eval mode, on the CPU; see `hpcfed.load_model`."""
    path = Path(source)
    if model not in ("", *CHOICES):
        raise ConfigError(f"model: {unknown('model', model, CHOICES)}")
    if model and client is not None:
        raise ConfigError(f"model = {model!r} and client = {client!r}: give one of them")
    if path.suffix != files.ENDING:
        return from_run(path, client, own, model, own_changed)
    if model:
        raise ConfigError(f"{path}: is one model, not a run; leave model = {model!r} away")
    return from_file(path, client, own, own_changed)


def from_file(
    path: Path, client: int | str | None, allowed: Collection[str], own_changed: bool
) -> Trained:
    """Return the model in a file that `hpcfed models` wrote.

    Raises ConfigError if it is of another client than the one asked for.
    """
    model = files.read(path, allowed, own_changed)
    if client not in (None, model.about.client, model.about.name, str(model.about.client)):
        raise ConfigError(
            f"{path}: is the model of client {model.about.client}, not of client {client}"
        )
    return model


def from_run(
    path: Path,
    client: int | str | None,
    allowed: Collection[str],
    model: str,
    own_changed: bool,
) -> Trained | Ensemble:
    """Return the model of a run's newest undamaged models (`from_newest`)."""
    from hpcfed.models.predictions import Ensemble
    from hpcfed.results.columns import client_names
    from hpcfed.results.trained.from_checkpoint import Saved, from_newest
    from hpcfed.storage import names, record

    run = names.folder_of(path)

    def saved(source: Reader, clients: list[int] | None = None) -> Saved:
        return Saved(run, source, clients, allowed, own_changed=own_changed)

    def choose(saved: Saved) -> Trained | Ensemble:
        if model == COMMON or (not model and saved.has_common):
            return saved.common()
        return Ensemble(list(saved.models()))

    if client is not None:
        # a number needs no names, for which the results would be read once more
        k = client if isinstance(client, int) else number(client, client_names(record.recover(run)))
        return from_newest(run, lambda source: saved(source, [k]).model(k))
    return from_newest(run, lambda source: choose(saved(source)))


def number(client: int | str, names: list[str]) -> int:
    """Return a client's number. client: this number, or the client's name. names: of all clients.

    Raises ConfigError for a name that no client has.
    """
    if client in names:
        return names.index(str(client))
    try:
        return int(client)
    except ValueError as error:
        valid = names or ["0, 1, 2, ..."]
        raise ConfigError(unknown("client", str(client), valid)) from error
