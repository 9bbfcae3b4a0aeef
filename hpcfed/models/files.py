"""Trained models as safetensors files: tensors by name, and in the metadata all that says what they
are.

Any safetensors reader opens them; only these functions, and the package around them, are needed to
predict.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from hpcfed.errors import CheckpointError
from hpcfed.extras import needed
from hpcfed.models.trained import KINDS, About, Trained, assembled
from hpcfed.paths import regular

FORMAT, VERSION = "hpcfed-model", "1"
ENDING = ".safetensors"


def encode(model: Trained) -> bytes:
    """The file's content. Metadata: format and version, and each field of `About` as JSON."""
    library = needed("safetensors.torch", "models", "a file of a trained model")
    told = {f.name: json.dumps(getattr(model.about, f.name)) for f in fields(About)}
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    return library.save(tensors, metadata={"format": FORMAT, "version": VERSION, **told})


def read(path: Path) -> Trained:
    """The trained model in a file, in eval mode, on the CPU. Raises CheckpointError where there is
    none.
    """
    library = needed("safetensors", "models", "a file of a trained model")
    try:
        with library.safe_open(regular(path), framework="pt") as file:
            found = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dict
    except (OSError, library.SafetensorError) as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error}; give a file that `hpcfed models` wrote"
        ) from error
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path}: no trained model of hpcfed (format {FORMAT}, version {VERSION}), but format "
            f"{found.get('format')}, version {found.get('version')}"
        )
    return assembled(told(path, found), tensors)


def told(path: Path, found: dict[str, str]) -> About:
    """What the metadata say of the model."""
    try:
        values = {f.name: json.loads(found[f.name]) for f in fields(About)}
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path}: its metadata are not as `hpcfed models` writes them: {error!r}"
        ) from error
    rows = {name: tuple(values[name]) for name in ("shape", "classes", "mean", "std")}
    if values["kind"] not in KINDS:
        raise CheckpointError(
            f"{path}: predicts by {values['kind']!r}, which this hpcfed does not know; use a newer"
        )
    return About(**values | rows)
