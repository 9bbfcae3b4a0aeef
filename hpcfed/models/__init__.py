"""The registry of models, and the function that builds one.

Every model is a body, images or texts to representation [n, *shape] -> [n, d], and a linear head,
[n, d] -> [n, C] (`hpcfed.models.model`). Each family of models has a file, which is imported only
when one of its models is built, so that names and shapes are checked without loading torch.

Your own model needs no line here: `models.mix = ["mine:tiny"]` is function tiny(shape, d) of
mine.py, in the current folder or anywhere on Python's path. It returns the body, or a whole model
that ends in a linear layer (`hpcfed.models.user_model`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hpcfed.config.architectures import MODELS as MODELS
from hpcfed.config.architectures import Entry as Entry
from hpcfed.config.architectures import check as check
from hpcfed.config.architectures import encoders_of, modalities_of
from hpcfed.config.architectures import find as find
from hpcfed.core.architecture import Architecture
from hpcfed.core.errors import ConfigError
from hpcfed.core.shapes import Shapes, values

if TYPE_CHECKING:
    from hpcfed.models.model import Model, Pair


def for_shapes(name: str) -> AbstractContextManager[object]:
    """Return a context in which a model is built for its names and shapes alone.

    A model of hpcfed or torchvision or a dual encoder gets no weights. Other code may read values
    of the tensors that it makes, so its models are built as always; so are sub-models, because to
    cut a tensor without values loads sympy, half a second on each rank. Random streams stay as they
    are.
    """
    from hpcfed.core import rng
    from hpcfed.models.without_weights import without_weights

    architecture = Architecture.parse(name)
    base = architecture.base
    is_foreign = ":" in base and not find(base).dual and not base.startswith("torchvision:")
    if is_foreign or architecture.width < 1:
        return rng.scoped(0, "shapes", everywhere=True)
    return without_weights()


def represents(name: str, shape: tuple[int, ...], classes: int, d: int) -> int:
    """Return the width of a model's representation; random streams stay as they are.

    Raises ConfigError as `build`.
    """
    base = Architecture.parse(name).base
    if ":" not in base or find(base).text:
        return values(shape) if base == "logistic" else d
    with for_shapes(name):
        return build(name, shape, classes, d).head.in_features


def normalises_batches(name: str, shape: tuple[int, ...], classes: int, d: int) -> bool:
    """Return whether a model has batch normalisation; random streams stay as they are.

    Raises ConfigError as `build`.
    """
    if find(Architecture.parse(name).base).text:
        return False
    from hpcfed.core import rng
    from hpcfed.models.layers import has_batch_norm

    with rng.scoped(0, "norm", everywhere=True):
        return has_batch_norm(build(name, shape, classes, d))


def missing_head(name: str, shape: tuple[int, ...], classes: int, d: int) -> str:
    """Return why a model has no head, or ""; random streams stay as they are.

    What a method changes in a model or cuts from it does not count. Raises ConfigError as `build`.
    """
    model = Architecture.parse(name).model
    if ":" not in model.base or find(model.base).text:
        return ""
    from hpcfed.core import rng
    from hpcfed.models.model import NoHead

    with rng.scoped(0, "head", everywhere=True):
        head = build(str(model), shape, classes, d).head
    return head.reason if isinstance(head, NoHead) else ""


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    d: int = 512,
    relu_head: bool = False,
    vocabulary: int = 0,
    names: Sequence[str] = (),
) -> Model | Pair:
    """Return a new model, in train mode, on torch's default device.

    name: an architecture (`hpcfed.core.architecture`), of one of MODELS, "torchvision:NAME",
    "timm:NAME", "hf:NAME", "clip:FOLDER", or "module:function" or "module:Class".
    shape: one example, [channels, height, width] for images; `Shapes` for several modalities, and
    the model then takes a dict of tensors.
    classes: C.
    d: width of the representation. Logistic regression and a user's whole model have no layer that
    could set it; their d is the input width of the head.
    relu_head: a ReLU between representation and head, as in FedClassAvg's code.
    vocabulary: number of different tokens of texts; 0 for images.
    names: the names of the classes, from which dual encoders make the head; default: their numbers.

    The weights are drawn from torch's global generator and nothing else: wrap the call in
    `rng.scoped(seed, "init", k)`.
    Raises ConfigError for an unknown name or a shape that the model cannot take.
    """
    from hpcfed.models.model import Head, Model, Pair

    check(name, shape, vocabulary)
    architecture = Architecture.parse(name)
    if architecture.proxy:
        from hpcfed.models.variants import change_pair

        pair = Pair(
            *(
                build(str(part), shape, classes, d, relu_head, vocabulary, names)
                for part in architecture.parts
            )  # type: ignore[arg-type]
        )
        return change_pair(pair, architecture.variants)
    base = architecture.base
    entry = find(base)
    target = entry.load()
    if entry.dual:
        from hpcfed.models.clip import make_head

        body = target(shape, d)
        model = Model(body, make_head(body, classes, names))
    elif ":" in base and not entry.text:
        model = build_own(base, target, shape, classes, d, relu_head)
    else:
        if isinstance(shape, Shapes):
            encoders = encoders_of(architecture, shape)
            body = target(modalities_of(architecture, shape), d, encoders)
        else:
            body = target(shape, d, *([vocabulary] if vocabulary else []))
        model = Model(body, Head(values(shape) if base == "logistic" else d, classes, relu_head))
    if architecture.variants:
        from hpcfed.models.variants import change

        model = change(model, architecture.variants)
    if architecture.width != 1:
        from hpcfed.models.widths import narrow

        model = narrow(model, shape, architecture.width)
    return model.to(memory_format=model.memory_format)  # type: ignore[call-overload]


def build_own(
    name: str, target: Any, shape: tuple[int, ...], classes: int, d: int, relu_head: bool
) -> Model:
    """Return a user's model.

    The head of a whole model is its last linear layer, with that layer's input width; a model that
    ends in no linear layer has a `NoHead`. Parameters that the user has frozen are buffers, and
    batch normalisation takes a batch of one example.
    """
    import torch

    from hpcfed.models.layers import for_small_batches
    from hpcfed.models.model import Head, Model, NoHead
    from hpcfed.models.user_model import head_of, hold_constants, make, other_defaults, split

    module = make(name, target, shape, classes, d)
    if not all(p.requires_grad for p in module.parameters()):
        with suppress(Exception):  # some attributes cannot be copied
            module = deepcopy(module)  # frozen layers may be those of other models, or the user's
    names = {layer: path for path, layer in module.named_modules()}
    try:
        body, linear = split(name, module, shape, classes, d)
    except ConfigError as error:
        raise ConfigError(f"{error}{other_defaults(target, shape, classes, d)}") from error
    for_small_batches(body)
    if linear is None:
        model = Model(body, Head(d, classes, relu_head))
        hold_constants(name, model)
        return model
    if isinstance(linear, NoHead):
        if relu_head:
            raise ConfigError(f"{linear.reason}; set models.relu_head = false")
        model = Model(body, linear)
    else:
        model = Model(body, head_of(linear, classes, relu_head))
        model.last = names[linear]
    hold_constants(name, model)
    model.memory_format = torch.contiguous_format
    return model
