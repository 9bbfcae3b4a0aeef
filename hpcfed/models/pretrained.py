"""Initial weights from a file.

A file is a state dict, by the names of the model itself ("fc.weight" of torchvision's) or by those
of hpcfed ("body. ...", "head.weight"). It is read with weights_only, or as safetensors, so no code
in it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from hpcfed.core.errors import ConfigError
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.wording import join_few
from hpcfed.models.model import Model
from hpcfed.models.variants import PROJECTION

NONE = "none"


def find_file(source: str) -> Path | None:
    """Return the file that models.weights names; None for "none".

    Raises ConfigError if the file does not exist.
    """
    return None if source == NONE else existing(source, "models.weights", f"{NONE!r}")


def existing(source: str, field: str, other: str = "") -> Path:
    """Return the file that a field of the job names.

    other: what the field takes beside files.  Raises ConfigError if the file does not exist.
    """
    path = Path(source).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"{field}: {source}: there is no such file; give the path of a state dict"
            + (f", or {other}" if other else "")
        )
    return path


@lru_cache(maxsize=1)
def read(path: Path, field: str = "models.weights") -> Mapping[str, Tensor]:
    """Return the tensors of a file by name.

    field: that names the file in the job.
    Raises ConfigError if it cannot be read or holds anything else.
    """
    try:
        if path.suffix == ".safetensors":
            library = import_extra("safetensors.torch", "models", f"{field} = {path}")
            tensors = library.load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except ConfigError:
        raise
    except Exception as error:
        # raised by torch for content that weights_only refuses
        if type(error).__name__ == "UnpicklingError":
            raise ConfigError(
                f"{field}: {path}: holds more than tensors, and hpcfed runs no code of a "
                f"file; save model.state_dict() alone"
            ) from error
        raise ConfigError(f"{field}: {path}: cannot be read: {error}") from error
    for inner in ("state_dict", "model"):
        if isinstance(tensors, dict) and isinstance(tensors.get(inner), dict):
            tensors = tensors[inner]
    if not isinstance(tensors, dict) or not all(
        isinstance(n, str) and isinstance(v, Tensor) for n, v in tensors.items()
    ):
        raise ConfigError(
            f"{field}: {path}: holds no state dict, tensors by name; save model.state_dict()"
        )
    for n, v in tensors.items():
        if v.layout != torch.strided or v.is_quantized or v.is_meta:
            raise ConfigError(
                f"{field}: {path}: {n} is sparse, quantised or without values; save plain tensors"
            )
    return tensors


@torch.no_grad()
def load(model: Model, name: str, path: Path) -> None:
    """Load the weights of a file into a model, in place.

    The head keeps its drawn weights if the file's head has other classes, or if the file has none.
    Raises ConfigError for a file that lacks a tensor of the body, or has it in another shape.
    """
    loaded = rename(model, read(path))
    state = {n: v for n, v in model.state_dict().items() if v.is_floating_point()}
    # modules that a method adds beside body and head (an adapter, say) keep their drawn weights,
    # and so does the projection of a mix
    state = {n: v for n, v in state.items() if n.startswith(("body.", "head."))}
    state = {n: v for n, v in state.items() if not n.startswith(f"body.{PROJECTION}.")}
    body = {n: v for n, v in state.items() if n.startswith("body.")}
    absent = [n for n in body if n not in loaded]
    if absent:
        raise ConfigError(
            f"models.weights: {path}: no weights of {name}: it lacks {join_few(absent, 3)}; give "
            f"a file of that model"
        )
    for n, value in body.items():
        if loaded[n].shape != value.shape:
            raise ConfigError(
                f"models.weights: {path}: {n} has shape {list(loaded[n].shape)}, but in {name}, "
                f"for these data, {list(value.shape)}; give a file for inputs of this shape"
            )
    fits = all(n in loaded and loaded[n].shape == state[n].shape for n in state if n not in body)
    for n, value in state.items():
        if n in body or fits:
            value.copy_(loaded[n])


def rename(model: Model, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a file by their names in the model."""
    tensors = {n.removeprefix("module."): v for n, v in tensors.items()}
    if any(n.startswith("model.body.") for n in tensors):  # a file of `hpcfed models`
        return {n.removeprefix("model."): v for n, v in tensors.items()}
    last = f"{model.last}." if model.last else ""
    inner = {n: v for n, v in tensors.items() if not last or not n.startswith(last)}
    head = {n.removeprefix(last): v for n, v in tensors.items() if last and n.startswith(last)}
    renamed = {f"body.{n}": v for n, v in inner.items()}
    renamed |= {f"head.{n}": v for n, v in head.items()}
    # a user's own class may have a `body` and a `head` too
    names = {n for n, _ in model.named_parameters()}
    return max(tensors, renamed, key=lambda named: len(named.keys() & names))
