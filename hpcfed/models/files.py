"""Files of trained models in the safetensors format, with a description in the metadata.

Any safetensors reader opens them. To predict, only these functions and this package are needed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, get_args

from hpcfed.core.encoder import parse
from hpcfed.core.errors import CheckpointError, ConfigError, DamagedError
from hpcfed.core.optional_imports import import_extra
from hpcfed.core.paths import regular
from hpcfed.core.registry import refuse_import
from hpcfed.core.safe_read import convert_read_errors, parse_json
from hpcfed.core.shapes import Modality, Shapes, read_numbers, read_shape, write_shape
from hpcfed.models import own_code, scores
from hpcfed.models.model import every_tensor
from hpcfed.models.trained import KINDS, About, Trained, assemble_model
from hpcfed.tasks import from_facts

FORMAT, VERSION = "hpcfed-model", "1"
ENDING = ".safetensors"
LARGEST = 2**31  # the largest size that is accepted
NUMBER = int | float
SCALARS = {  # types of the fields of `About`, and of its `more`
    **dict.fromkeys(("architecture", "counted", "kind", "mask", "server", "name"), str),
    **dict.fromkeys(("d", "vocabulary", "client", "rounds"), int),
    **dict.fromkeys(("more", "job", "task", "encoder", "own"), dict),
    **dict.fromkeys(("relu_head", "before_final", "after_final"), bool),
}
LISTS = {"shape": int, "classes": str, "mean": NUMBER, "std": NUMBER}


def encode(model: Trained) -> bytes:
    """Return the content of the file.

    The metadata hold format and version, and each field of `About` as JSON.
    """
    library = import_extra("safetensors.torch", "models", "a file of a trained model")
    # safetensors refuses tensors that share memory, as those of layers with tied weights do
    tensors = {name: value.contiguous().clone() for name, value in every_tensor(model).items()}
    return library.save(tensors, metadata=describe(model.about))


def describe(about: About) -> dict[str, str]:
    """Return the description of a model, as texts by name, for the metadata of a file."""
    values = {field.name: getattr(about, field.name) for field in fields(About)}
    values |= {"shape": write_shape(about.shape), "encoder": about.encoder.plain()}
    texts = {name: json.dumps(value) for name, value in values.items()}
    return {"format": FORMAT, "version": VERSION, **texts}


def read(path: Path, importable: Collection[str] = (), own_changed: bool = False) -> Trained:
    """Read the trained model in a file, in eval mode, on the CPU.

    importable: models outside hpcfed that may be imported.
    own_changed: whether their code may differ from that which was trained.
    Raises CheckpointError if the file holds no trained model, ConfigError if it needs another model
    outside hpcfed, or one whose code has changed.
    """
    library = import_extra("safetensors", "models", "a file of a trained model")
    try:
        with library.safe_open(regular(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is not a dict
    except (OSError, library.SafetensorError) as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error}; give a file that `hpcfed models` wrote"
        ) from error
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path}: no trained model of hpcfed (format {FORMAT}, version {VERSION}), but format "
            f"{metadata.get('format')}, version {metadata.get('version')}"
        )
    about = parse_about(path, metadata)
    advice = "load_model(own=[...]) with"
    built = [about.architecture, about.more.get("server")]
    refuse_import(built, importable, str(path), advice)
    own_code.check_trained(about.own, own_code.own_names("", built), str(path), own_changed)
    with convert_read_errors(path):
        return assemble_model(about, tensors)


def description(path: Path) -> About | None:
    """Return the description of the model in a safetensors file; None if hpcfed did not write it.

    Raises CheckpointError if it is malformed.
    """
    library = import_extra("safetensors", "models", "a file of a trained model")
    with library.safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    return parse_about(path, metadata) if metadata.get("format") == FORMAT else None


def parse_about(path: Path, metadata: dict[str, str]) -> About:
    """Return the description in a file's metadata. Raises CheckpointError if it is malformed."""
    try:
        values = {f.name: parse_json(metadata[f.name], f.name) for f in fields(About)}
        for name, value in flat(values):
            check_type(name, value)
        rows = {name: read_numbers(values[name]) for name in ("mean", "std")}
        rows |= {"shape": read_shape(values["shape"]), "classes": tuple(values["classes"])}
        rows["encoder"] = parse(
            values["encoder"], rows["shape"], values["vocabulary"], rows["classes"]
        )
        about = About(**values | rows)
        check_about(about)
    except (DamagedError, KeyError) as error:
        raise CheckpointError(
            f"{path}: its metadata are not as `hpcfed models` writes them: {error}"
        ) from error
    check_task(path, about)
    if about.kind not in KINDS:
        raise CheckpointError(
            f"{path}: predicts by {about.kind!r}, which this version of hpcfed does not have; "
            f"use a newer one"
        )
    return about


def check_task(path: Path, about: About) -> None:
    """Raise CheckpointError unless the description names a task, with a number per output."""
    try:
        facts = from_facts(about.task).facts()
        lists = [value for name, value in facts.items() if name != "name"]
        numbers = all(len(row) == len(about.classes) for row in lists)
        if not numbers or not all(isfinite(value) for row in lists for value in row):
            raise TypeError(f"{facts}")
    except (ConfigError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: its task is {about.task!r:.200}: {error}") from error


def flat(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields by name, for several modalities those of each one."""
    for name, value in values.items():
        if name in ("mean", "std") and isinstance(value, dict):
            yield from ((name, row) for row in value.values())
        elif name == "shape" and isinstance(value, list) and value and isinstance(value[0], dict):
            for part in value:
                if not (isinstance(part, dict) and set(part) == set(Modality._fields)):
                    raise DamagedError(f"shape holds {part!r}")
                yield "counted", part["name"]  # a name, checked as a string
                yield name, part["shape"]
                yield "vocabulary", part["vocabulary"]
        else:
            yield name, value


def check_type(name: str, value: Any) -> None:
    """Raise DamagedError if a field has another type than in `About`.

    It does without pydantic, so that files of trained models can be read without it.
    """
    item_types = LISTS | {"present": int}
    kind: Any
    kind, items = (item_types[name], value) if name in item_types else (SCALARS[name], [value])
    alike = isinstance(items, list) and all(
        isinstance(item, kind) and isinstance(item, bool) == (kind is bool) for item in items
    )
    if not alike or (kind == NUMBER and not all(map(isfinite, items))):
        raise DamagedError(f"{name} is {value!r}")


def check_about(about: About) -> None:
    """Raise DamagedError for impossible sizes or missing values.

    Values are missing if the kind of prediction needs them and `more` lacks them.
    """
    C, more, shape = len(about.classes), about.more, about.shape
    if isinstance(shape, Shapes):
        several = {part.name: part for part in shape}
        if not (isinstance(about.mean, dict) and about.mean.keys() == several.keys()):
            raise DamagedError("means are not of the modalities that the shape names")
        if not (isinstance(about.std, dict) and about.std.keys() == several.keys()):
            raise DamagedError("deviations are not of the modalities that the shape names")
        for name, part in several.items():
            one = replace(about, shape=part.shape, vocabulary=part.vocabulary)
            check_about(replace(one, mean=about.mean[name], std=about.std[name]))
        return
    if isinstance(about.mean, dict) or isinstance(about.std, dict):
        raise DamagedError("means are those of modalities, but the shape names none")
    sizes = (*about.shape, about.d, about.vocabulary + 1, about.client + 2, about.rounds + 1)
    if not (about.shape and C and all(0 < n <= LARGEST for n in sizes)):
        raise DamagedError(f"sizes {sizes} of {C} classes")
    if len(about.mean) != len(about.std) or (about.mean and len(about.mean) != about.shape[0]):
        raise DamagedError(f"{len(about.mean)} means and {len(about.std)} deviations")
    for name in {"masked": ("present", "mask"), "served": ("server", "shape")}.get(about.kind, ()):
        check_type(name, more[name])
    if about.kind == "masked" and not all(0 <= c < C for c in more["present"]):
        raise DamagedError("'present' names classes that there are not")
    if about.kind == "masked" and more["mask"] not in get_args(scores.Mask):
        raise DamagedError(f"mask is {more['mask']!r}")
    if about.kind == "served" and not all(0 < n <= LARGEST for n in more["shape"]):
        raise DamagedError(f"the server's shape is {more['shape']}")
