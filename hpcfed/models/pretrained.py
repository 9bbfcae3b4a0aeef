"""Initial weights from a file.

A file is a state dict, by the names of the model itself ("fc.weight" of torchvision's) or by those
of hpcfed ("body. ...", "head.weight"). It is read with weights_only, or as safetensors, so no code
in it is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from hpcfed.core.encoder import Column, Encoder
from hpcfed.core.errors import ConfigError
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.wording import join_few
from hpcfed.models import files
from hpcfed.models.model import Model
from hpcfed.models.trained import About
from hpcfed.models.variants import PROJECTION

NONE = "none"
FEW = 8  # columns or categories in a message


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


@lru_cache(maxsize=1)
def description(path: Path) -> About | None:
    """Return the description of a model that hpcfed trained; None for files of others."""
    return files.description(path) if path.suffix == files.ENDING else None


def check_inputs(path: Path, encoder: Encoder) -> None:
    """Raise ConfigError for a file of `hpcfed models` whose inputs have another meaning.

    Their numbers may fit nevertheless. encoder: of the data set.
    """
    read(path)
    about = description(path)
    if about is None:
        return
    place, columns, tokens = f"models.weights: {path}", about.encoder.columns, about.encoder.tokens
    if columns and encoder.columns and (text := other_columns(columns, encoder.columns)):
        raise ConfigError(
            f"{place}: {text}; give data with its columns, in its order (columns.inputs), and its "
            f"categories, or leave models.weights away"
        )
    if tokens and encoder.tokens and tokens != encoder.tokens:
        raise ConfigError(
            f"{place}: its model was trained on other tokens than those of these data, "
            f"{join_few(list(tokens), 3)} and not {join_few(list(encoder.tokens), 3)}; leave "
            f"models.weights away"
        )


def other_columns(columns: Sequence[Column], now: Sequence[Column]) -> str:
    """Return how the columns of the data set (`now`) differ from those of a model; "" if alike."""
    names, names_now = [column.name for column in columns], [column.name for column in now]
    if names != names_now:
        return (
            f"its model was trained on the columns {join_few(names, FEW)}, in this order, and "
            f"these data have {join_few(names_now, FEW)}"
        )
    for one, other in zip(columns, now, strict=True):
        if one.categories != other.categories:
            values = [join_few(list(map(str, c.categories)), FEW) or "none" for c in (one, other)]
            return (
                f"its model was trained with the categories {values[0]} of column {one.name!r}, "
                f"and these data have {values[1]}"
            )
    return ""


@torch.no_grad()
def load(model: Model, name: str, path: Path, classes: Sequence[str] = ()) -> bool:
    """Load the weights of a file into a model, in place; return whether they include the head.

    The head keeps its drawn weights if the file's head has other classes, or if the file has none.
    classes: names of the outputs, in order, which those in a file of `hpcfed models` must be; ():
    their number suffices.
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
    about = description(path)
    if classes and about is not None:
        fits = fits and about.classes == tuple(classes)
    for n, value in state.items():
        if n in body or fits:
            value.copy_(loaded[n])
    return fits


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
