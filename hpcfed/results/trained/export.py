"""`hpcfed models RUN`: the trained models of a run as files, one for each client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hpcfed.core.errors import ConfigError
from hpcfed.core.wording import count_noun
from hpcfed.models import files, onnx
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from hpcfed.storage import names
from hpcfed.storage.atomic import put
from hpcfed.storage.checkpoint import Reader

FORMATS = {"safetensors": files, "onnx": onnx}
SCORED = "each as it was scored then"
WHAT = {
    True: "each as it was after its local training",
    False: "each as the client would receive it next, for with this method clients keep no model",
}


def models(
    run: Path,
    clients: str | None = None,
    out: Path | None = None,
    own: Sequence[str] | None = None,
    common: bool = False,
    format: str = "safetensors",
    own_changed: bool = False,
) -> str:
    """Write the trained models of a run, and return a message that says where.

    clients: numbers with commas; None for all.
    out: the folder; None for `models` in that of the run.
    own: method and models outside hpcfed that may be imported.
    own_changed: whether their code may differ from that of the run.
    common: write the global model alone.  format: safetensors or onnx.
    Takes the models after the method's final step, or else those of the newest undamaged
    checkpoint, also during the run. Raises CheckpointError if
    there is none, ConfigError for a method whose clients' models cannot be exported.
    """
    run, wanted = names.folder_of(run), numbers(clients)
    if common and wanted:
        raise ConfigError("--common and --clients: the global model is no client's; give one")
    folder, form = out or names.models_folder(run), FORMATS[format]

    def write(source: Reader) -> str:
        saved = Saved(run, source, wanted, own or (), own_changed=own_changed)
        if common:
            path = folder / f"common{form.ENDING}"
            put(path, form.encode(saved.common()))
            return f"{path}: the global model {saved.moment}"
        return write_clients(saved, source, folder, form)

    return from_newest(run, write)


def write_clients(saved: Saved, source: Reader, folder: Path, form: ModuleType) -> str:
    """Write the clients' files, and return a message about them."""
    for model in saved.models():
        path = names.model_file(folder, model.about.client).with_suffix(form.ENDING)
        put(path, form.encode(model))
    n, what = len(saved.clients), SCORED if source.final else WHAT[saved.keeps]
    return f"{folder}: models of {count_noun(n, 'client')} {saved.moment}, {what}"


def numbers(text: str | None) -> list[int] | None:
    """Return `0,3` as [0, 3]. Raises ConfigError for anything else."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--clients {text}: give numbers of clients with commas, as 0,3"
        ) from error
