"""Default settings of torch and numpy, for a run in a process that other code uses too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from hpcfed.core import rng

VARIABLES = ("CUBLAS_WORKSPACE_CONFIG",)  # that `devices.prepare` may set
FRESH = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}  # of numpy
CUDNN = ("enabled", "benchmark", "deterministic")
# where torch (2.9 and later) keeps the precision of float32 products: that of a place counts for
# those below it whose own is "none". That of "mkldnn" cannot be set: its setter sets the one of ""
PLACES = (
    *("", "cudnn", "cuda.matmul", "cudnn.conv", "cudnn.rnn"),
    *("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
)
FRESH_PRECISIONS = {"cudnn.conv": "tf32", "cudnn.rnn": "tf32"}  # of other places "none"
MATMUL, CUDNN_TF32 = "older matmul", "older cudnn"  # what the older interface reads


@contextmanager
def usual_settings() -> Iterator[None]:
    """Run the block with a fresh process's settings, as far as they change the bits of a result.

    Afterwards all settings are restored, and the state of torch's generators too. Only the memory
    that the C library keeps (`allocator.keep_memory`) is not released.
    """
    before, precisions = settings(), take_precisions()
    variables = {name: os.environ.get(name) for name in VARIABLES}
    threads = torch.get_num_threads()
    try:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_deterministic_debug_mode(0)
        torch.backends.cudnn.enabled = True
        with (
            rng.keep_states(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
            np.errstate(**FRESH),  # type: ignore[arg-type]
        ):
            yield
    finally:
        restore(before)
        restore_precisions(precisions)
        torch.set_num_threads(threads)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def settings() -> dict[str, Any]:
    """Return the current settings of torch that a run or a user may change."""
    utils: Any = torch.utils.deterministic
    return {
        "cudnn": {name: getattr(torch.backends.cudnn, name) for name in CUDNN},
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "fill": utils.fill_uninitialized_memory,
        "gpu": torch.cuda.current_device() if torch.cuda.is_initialized() else None,
    }


def take_precisions() -> dict[str, Any]:
    """Return the precisions of float32 products, and set those of a fresh process.

    torch has two interfaces for them. Setting by the older one sets both; reading by it raises
    RuntimeError after a setting by the newer one (`fp32_precision`) that differs, so what cannot be
    read is not restored by it either. Only what differs is set: a setting that oneDNN sees changed,
    even if it is changed back, can make products in bfloat16 take twice as long.
    """
    before = read_older()
    for place in PLACES:  # from above, so that each shows its own
        module = backend(place)
        if hasattr(module, "fp32_precision"):
            before[place] = module.fp32_precision
            set_place(place, FRESH_PRECISIONS.get(place, "none"))
    set_older("highest", True)
    return before


def restore_precisions(before: dict[str, Any]) -> None:
    """Restore what `take_precisions` returned."""
    set_older(before.get(MATMUL, "highest"), before.get(CUDNN_TF32, True))
    for place in reversed(PLACES):  # while those above are as in a fresh process
        if place in before:
            set_place(place, before[place])


def read_older() -> dict[str, Any]:
    """Return the precisions that torch's older interface can read."""
    values: dict[str, Any] = {}
    with suppress(RuntimeError):
        values[MATMUL] = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        values[CUDNN_TF32] = torch.backends.cudnn.allow_tf32
    return values


def set_older(matmul: str, cudnn: bool) -> None:
    """Set precisions by torch's older interface, if it does not read these values."""
    current = read_older()
    if current.get(MATMUL) != matmul:
        torch.set_float32_matmul_precision(matmul)
    if current.get(CUDNN_TF32) != cudnn:
        torch.backends.cudnn.allow_tf32 = cudnn


def set_place(place: str, precision: str) -> None:
    """Set the precision of a place by torch's newer interface, if it has another one."""
    module = backend(place)
    if module.fp32_precision != precision:
        module.fp32_precision = precision


def backend(place: str) -> Any:
    """Return a part of `torch.backends`; None if this torch does not have it."""
    module: Any = torch.backends
    for name in filter(None, place.split(".")):
        module = getattr(module, name, None)
    return module


def restore(before: dict[str, Any]) -> None:
    """Restore the settings that `settings` returned."""
    utils: Any = torch.utils.deterministic
    torch.set_default_dtype(before["dtype"])
    cpu = before["device"] == torch.device("cpu")
    torch.set_default_device(None if cpu else before["device"])
    torch.set_deterministic_debug_mode(before["deterministic"])
    utils.fill_uninitialized_memory = before["fill"]
    for name, value in before["cudnn"].items():
        setattr(torch.backends.cudnn, name, value)
    if before["gpu"] is not None:
        torch.cuda.set_device(before["gpu"])
