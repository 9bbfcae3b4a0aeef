"""A user's own model: its call, and its split into body and head if it is a whole model.

A function or class may return the body, [n, *shape] -> [n, d], as the models of hpcfed do. Or it
returns a whole model, [n, *shape] -> [n, C]. If it ends in a linear layer, this layer becomes the
head, and everything before it the body. Otherwise it is a body without a head (`NoHead`), for
methods that read neither the head nor the representation.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import Inputs, zeros
from hpcfed.core.shapes import Shapes, describe_shape, each
from hpcfed.models.model import Head, Model, NoHead

SHAPE = ("shape", "input_shape", "in_shape", "image_shape")
D = ("d", "dim", "features", "feature_dim", "n_features", "rep_dim", "embedding_dim", "width")
CLASSES = ("num_classes", "n_classes", "classes", "nclasses", "num_labels", "n_labels", "C")
CHANNELS = ("in_channels", "channels", "in_ch", "input_channels", "n_channels", "num_channels")
VALUES = ("in_features", "input_dim", "in_dim", "input_size", "n_inputs", "num_inputs")
PRODUCT = re.compile(r"\(\d+x(\d+) and (\d+)x\d+\)")  # in torch's message for a linear layer
KNOWN = ("shape", "d", "num_classes", "in_channels", "in_features")  # the names shown in messages


def make(
    name: str, target: Callable[..., Any], shape: tuple[int, ...], classes: int, d: int
) -> nn.Module:
    """Return the module that a user's function or class makes for these inputs.

    Raises ConfigError, with the line, if it cannot be called, raises, or returns no module.
    """
    if isinstance(target, nn.Module):
        raise ConfigError(
            f"models.mix: {name}: is one existing module; name its class, or a function "
            f"that makes a new one, so that each client has its own weights"
        )
    if not callable(target):
        raise ConfigError(
            f"models.mix: {name}: is a {type(target).__name__}, no function or class; name one "
            f"that returns a torch.nn.Module, as in `def tiny(shape, d): ...`"
        )
    place = f"models.mix: {name}: {user_code.line_of(target)}"
    positional, named = arguments(place, target, shape, classes, d)
    try:
        module = target(*positional, **named)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"models.mix: {name}: {user_code.refusal(error)}\n  while "
            f"{describe_call(target, shape, classes, d)} was called"
        ) from error
    if not isinstance(module, nn.Module):
        what = "None (is a `return` missing?)" if module is None else f"{module!r:.60}"
        raise ConfigError(
            f"{place}: {name_of(target)} returns {what}; return a torch.nn.Module: the body, "
            f"inputs -> [n, {d}], or a whole model, inputs -> [n, {classes}]"
        )
    check_tensors(f"{place}: {name_of(target)}", module)
    return module


def check_tensors(place: str, module: nn.Module) -> None:
    """Raise ConfigError for compiled modules, for statistics that all clients of a rank would
    share, and for tensors that cannot be written in place.

    place: begins the message.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, torch.jit.ScriptModule):
            raise ConfigError(
                f"{place}: {name or 'the model'} is a module of torch.jit, which cannot be split "
                f"into body and head; return the nn.Module without torch.jit.script or trace"
            )
        if isinstance(layer, _BatchNorm) and layer.momentum is None and layer.track_running_stats:
            raise ConfigError(
                f"{place}: {name} has momentum = None: its running statistics depend on how many "
                f"batches it has seen, which are those of all clients of a rank; set momentum = 0.1"
            )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):  # it has no values before the first call
            continue
        if tensor.layout != torch.strided:
            raise ConfigError(
                f"{place}: {name} is a sparse tensor; make it dense with .to_dense(), so that it "
                f"can be sent and averaged"
            )
        if any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
            raise ConfigError(
                f"{place}: {name} has {tensor.numel()} values in the memory of fewer (expand), so "
                f"it cannot be trained; make it with .expand(...).clone()"
            )


def name_of(target: Callable[..., Any]) -> str:
    """Return the name of a function or class; for a `functools.partial`, that of its function."""
    function = getattr(target, "func", target)
    return getattr(function, "__name__", type(function).__name__)


def describe_call(target: Callable[..., Any], shape: tuple[int, ...], classes: int, d: int) -> str:
    """Return how a user's model is called, for messages: "Net(in_channels=3, num_classes=4)"."""
    positional, named = arguments("", target, shape, classes, d)
    bound = getattr(target, "keywords", {})  # of a functools.partial
    words = [f"{name}={value!r}" for name, value in (named | bound).items()]
    values = [*getattr(target, "args", ()), *positional]
    return f"{name_of(target)}({', '.join([*map(repr, values), *words])})"


def values_of(shape: tuple[int, ...], classes: int, d: int) -> dict[str, Any]:
    """Return the values of the parameters whose names are known."""
    several = isinstance(shape, Shapes)
    sizes: Any = shape
    if isinstance(shape, Shapes):
        sizes = {part.name: part.shape for part in shape}
    values: dict[str, Any] = {
        **dict.fromkeys(SHAPE, sizes),
        **dict.fromkeys(D, d),
        **dict.fromkeys(CLASSES, classes),
    }
    if not several:
        values |= {**dict.fromkeys(CHANNELS, shape[0]), **dict.fromkeys(VALUES, math.prod(shape))}
    return values


def arguments(
    place: str, target: Callable[..., Any], shape: tuple[int, ...], classes: int, d: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for the function: those that the names of its parameters ask for.

    A parameter with a default keeps it. Two parameters of other names are given (shape, d).
    Raises ConfigError for a parameter without default whose name is unknown.
    """
    if isinstance(target, type) and not issubclass(target, nn.Module):
        raise ConfigError(
            f"{place}: class {target.__name__} is not a torch.nn.Module; write "
            f"`class {target.__name__}(nn.Module):`"
        )
    values = values_of(shape, classes, d)
    try:
        required, named, any_number = user_code.parameters_of(target)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place}: cannot be called with (shape, d): {error}") from error
    unknown = [p for p in required if p not in values]
    if len(unknown) == len(required) == 2 or (any_number and not named):
        return (values["shape"], d), {}
    if unknown:
        raise ConfigError(
            f"{place}: {name_of(target)} wants {', '.join(unknown)}, which hpcfed does not know; "
            f"give a default, or take any of "
            + ", ".join(f"{name} (here {values[name]})" for name in KNOWN if name in values)
        )
    return (), {p: values[p] for p in required}


def other_defaults(target: Callable[..., Any], shape: tuple[int, ...], classes: int, d: int) -> str:
    """Return a line about parameters whose defaults are not what these data need; "" if none."""
    values = values_of(shape, classes, d)
    wanted = {name: values[name] for name in values if name not in D}
    lines = [
        f"\n  {name} = {p.default!r} is a default, which is kept; for these data it would be "
        f"{wanted[name]!r}: remove the default, and the parameter is filled in"
        for name, p in inspect.signature(target).parameters.items()
        if name in wanted and p.default is not p.empty and p.default != wanted[name]
    ]
    return "".join(lines)


def split(
    name: str, module: nn.Module, shape: tuple[int, ...], classes: int, d: int
) -> tuple[nn.Module, nn.Linear | NoHead | None]:
    """Return the module as a body and, if it is a whole model, its last linear layer.

    The second value is None for a body, and a `NoHead` for a whole model that ends in no linear
    layer. Modes and random streams stay as they are, except that the first call draws the weights
    of lazy layers. Raises ConfigError if the module takes other inputs, is neither a body nor a
    whole model, or ends in what the loss does itself.
    """
    if isinstance(shape, Shapes):
        call_by_keyword(name, module, shape)
    x = zeros(shape, 2)
    training = module.training
    module.eval()
    out, layers = run(name, module, x)
    size = list(out.shape) if isinstance(out, Tensor) else None
    place = f"models.mix: {name}: {user_code.line_of(type(module).forward)}"
    if lazy := [n for n, p in module.named_parameters() if is_lazy(p)]:
        raise ConfigError(
            f"{place}: {lazy[0]} is of a lazy layer, which gets its shape when forward first calls "
            f"it, but forward does not; call or remove that layer"
        )
    want = (
        f"return the representation, here [2, {d}], or logits of a last nn.Linear, [2, {classes}]"
    )
    if size is None:
        raise ConfigError(
            f"{place}: the model returns a {type(out).__name__} of two inputs of shape "
            f"{describe_shape(shape)}; {want}"
        )
    last = next((n for n, y in layers if y is out), None)
    if size == [2, d] and (size != [2, classes] or last is None):
        used = module.to(memory_format=Model.memory_format)  # type: ignore[call-overload]
        run(name, used, x)
        return mode(module, training), None
    if size != [2, classes]:
        raise ConfigError(
            f"{place}: the model makes {size} of two inputs of shape {describe_shape(shape)}, but "
            f"models.d "
            f"is {d}, and there are {classes} classes; {want}"
        )
    if last is None or [n for n, _ in layers].count(last) > 1:
        if end := last_function(out, layers):
            raise ConfigError(f"{place}: {end}")
        reason = "the model ends in no linear layer that is used once"
        return mode(module, training), NoHead(classes, f"{place}: {reason}")
    linear: Any = module.get_submodule(last)
    if linear.bias is None:
        reason = f"its last layer, {last}, has no bias; heads have one"
        return mode(module, training), NoHead(classes, f"{place}: {reason}")
    body = without(module, last)
    z, _ = run(name, body, x)
    if list(z.shape) != [2, linear.in_features]:
        raise ConfigError(
            f"{place}: the last layer, {last}, reads {list(z.shape)} of two inputs; let it read "
            f"[n, {linear.in_features}]"
        )
    return mode(body, training), linear


def call_by_keyword(name: str, module: nn.Module, shapes: Shapes) -> None:
    """Let the forward of a module that has a parameter for each modality get them by keyword.

    A forward with one parameter of another name gets the dict of all modalities. Modalities without
    names (input1, input2, ...) are given in their order. Raises ConfigError for parameters that are
    no modalities, and for a modality without a parameter.
    """
    named = inspect.signature(module.forward).parameters
    if any(p.kind is p.VAR_KEYWORD for p in named.values()):
        parameters = list(shapes.names)
    else:
        parameters = [n for n, p in named.items() if p.default is p.empty or n in shapes.names]
    if len(parameters) == 1 and parameters[0] not in shapes.names:
        return
    unnamed = shapes.names == tuple(f"input{i}" for i in range(1, len(shapes) + 1))
    if unnamed and len(parameters) == len(shapes):
        of = dict(zip(parameters, shapes.names, strict=True))
    elif set(parameters) == set(shapes.names):
        of = {parameter: parameter for parameter in parameters}
    else:
        raise ConfigError(
            f"models.mix: {name}: {user_code.line_of(type(module).forward)}: forward takes "
            f"{', '.join(parameters)}, but the modalities are {', '.join(shapes.names)}; name its "
            f"parameters so, or let it take one dict of them"
        )

    def by_keyword(_: nn.Module, inputs: tuple[Any, ...], __: Any) -> Any:
        return (), {parameter: inputs[0][modality] for parameter, modality in of.items()}

    module.register_forward_pre_hook(by_keyword, with_kwargs=True)


def mode(module: nn.Module, training: bool) -> nn.Module:
    return module.train(training)


def run(name: str, module: nn.Module, x: Inputs) -> tuple[Any, list[tuple[str, Tensor]]]:
    """Return the output, and the outputs of all linear layers with their names.

    The layers are in the order of their calls. Raises ConfigError if the call fails.
    """
    layers: list[tuple[str, Tensor]] = []
    handles = [
        layer.register_forward_hook(lambda _, __, y, n=n: layers.append((n, y)))
        for n, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        with torch.no_grad():
            return module(x), layers
    except Exception as error:
        product = PRODUCT.search(str(error))
        hint = (
            f"\n  the layer gets {product[1]} values and was made for {product[2]}"
            if product
            else ""
        )
        raise ConfigError(
            f"models.mix: {name}: {user_code.refusal(error)}{hint}\n  two inputs of this data set "
            f"have shape {each(x, lambda v: list(v.shape))}: let the layers take them"
        ) from error
    finally:
        for handle in handles:
            handle.remove()


def last_function(out: Tensor, layers: list[tuple[str, Tensor]]) -> str:
    """Return which function a model applies to its logits, which the loss applies itself, or ""."""
    for layer, y in layers[::-1]:
        if out.is_meta or y.shape != out.shape:
            continue
        for end in ("log_softmax", "softmax", "sigmoid", "relu"):
            after = y.sigmoid() if end == "sigmoid" else getattr(F, end)(y, *[1][: "soft" in end])
            if torch.allclose(after, out) and not torch.equal(y, out):
                return f"the model ends in {end}; return the output of {layer} as it is"
    for end, values in (("softmax", out), ("log_softmax", out.exp())):
        if not out.is_meta and out.shape[1] > 1 and are_shares(values):
            return f"the model ends in {end}; return what it is applied to"
    return ""


def are_shares(values: Tensor) -> bool:
    """Return whether the values of each row lie in 0..1 and sum to 1."""
    sums = values.sum(1)
    return bool((values >= 0).all()) and torch.allclose(sums, torch.ones_like(sums))


def without(module: nn.Module, layer: str) -> nn.Module:
    """Return the module with an identity in the place of this layer."""
    if not layer:
        return nn.Identity()
    parent, _, last = layer.rpartition(".")
    setattr(module.get_submodule(parent), last, nn.Identity())
    return module


def head_of(linear: nn.Linear, classes: int, relu: bool) -> Head:
    """Return a head with this layer's parameters."""
    head = Head(linear.in_features, classes, relu)
    head.weight, head.bias = linear.weight, linear.bias
    return head


def hold_constants(name: str, model: nn.Module) -> None:
    """Turn the parameters that a user has frozen (requires_grad = False) into buffers, in place.

    As buffers they get no gradient and no optimiser step, and methods treat them as they treat
    running statistics. A tensor that several modules share stays shared. Raises ConfigError if
    nothing is left to train.
    """
    constants: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for key, value in list(module._parameters.items()):
            if value is not None and not value.requires_grad:
                del module._parameters[key]
                module.register_buffer(key, constants.setdefault(value, value.detach()))
    if constants and not any(True for _ in model.parameters()):
        raise ConfigError(
            f"models.mix: {name}: all of its parameters are frozen (requires_grad = False), so "
            f"there is nothing to train; leave those that clients train unfrozen"
        )
