"""Comparison of two jobs, and of two values bit for bit."""

import json
from typing import Any

import numpy as np

from hpcfed.core.errors import CheckpointError
from hpcfed.storage.fields import flat

ABSENT = "absent"


def same_job(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Raise CheckpointError, with the fields that differ, unless both jobs are the same."""
    here = flat(json.loads(json.dumps(ours)))  # tuples become lists, as in theirs
    saved = flat(theirs)
    differences = [
        f"{name}: {here.get(name, ABSENT)} here, {saved.get(name, ABSENT)} in the checkpoint"
        for name in sorted(here.keys() | saved.keys())
        if here.get(name, ABSENT) != saved.get(name, ABSENT)
    ]
    if differences:
        raise CheckpointError(
            "the checkpoint is of another job:\n  "
            + "\n  ".join(differences)
            + "\n  set these fields as they are in the checkpoint, or start anew without --resume"
        )


def same(a: Any, b: Any) -> bool:
    """Return whether two values that `tree` can save are equal in shape and bits, nan included."""
    match a:
        case dict():
            return (
                isinstance(b, dict)
                and a.keys() == b.keys()
                and all(same(a[key], b[key]) for key in a)
            )
        case list() | tuple():
            return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
        case np.generic():
            return same(a.item(), b)
        case None | bool() | int() | float() | str():
            return repr(a) == repr(b)
        case np.ndarray():
            alike = isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
            return alike and np.array_equal(_bytes(a), _bytes(b))
        case _:
            import torch  # here, so that result files are read without torch

            alike = isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape
            return alike and np.array_equal(
                *(t.detach().cpu().reshape(-1).view(torch.uint8).numpy() for t in (a, b))
            )


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
