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
# keeps the libraries: an operator lives only as long as the library that declares it
_kept: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Import torchvision, even if its compiled part does not fit the installed torch.

    A torchvision wheel built for CUDA cannot load its operators beside a torch built for the CPU
    (or the other way round). Then `import torchvision` fails, although data sets, models and
    transforms need no operator. The missing operators get a schema without an implementation, so
    that calling one is still an error.
    Raises any other error of the import.
    """
    with _LOCK:
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
        _declare_operators()
        return importlib.import_module("torchvision")


@cache
def prepare_torchvision() -> None:
    """Make any later `import torchvision` succeed in the cases in which `import_torchvision` does.

    This serves files that are not part of hpcfed: a user's module imports torchvision by itself.
    torchvision is not imported here. Its compiled part is loaded, as its own import does. If that
    fails, the operators that its import needs are declared.
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
        _declare_operators()


def _declare_operators() -> None:
    missing = [name for name in _SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in missing:
        library.define(name + _SCHEMAS[name])
    _kept.append(library)
