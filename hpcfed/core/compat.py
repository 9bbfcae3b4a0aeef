"""Workarounds for library versions that do not fit together."""

import importlib
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

_LOCK = threading.Lock()
_SCHEMAS = {  # what torchvision's compiled part declares, from torchvision/csrc/ops
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
# an operator lives only as long as the library that declares it
_LIBRARIES: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Import torchvision, even if its compiled part does not fit the installed torch."""
    prepare_torchvision()
    return importlib.import_module("torchvision")


@cache
def prepare_torchvision() -> None:
    """Make any later `import torchvision` succeed, also one in a user's module.

    A torchvision wheel built for CUDA cannot load its operators beside a torch built for the CPU
    (or the other way round). Then `import torchvision` fails, although data sets, models and
    transforms need no operator. Its compiled part is loaded here, as its own import does. If that
    fails, the operators that its import needs get a schema without an implementation, so that
    calling one is still an error.
    """
    with _LOCK:
        spec = find_spec("torchvision")
        if spec is None or spec.origin is None:
            return
        for path in Path(spec.origin).parent.glob("_C*.so"):
            try:
                torch.ops.load_library(str(path))
                return
            except (OSError, RuntimeError):
                continue
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(name + schema)
        _LIBRARIES.append(library)
