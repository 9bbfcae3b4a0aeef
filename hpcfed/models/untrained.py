"""Parts of a user's own model that no client would train or store, found before the run.

A layer in a plain list, or one that forward takes from elsewhere, is no parameter of the model:
nobody trains or sends it. A parameter that forward uses under `torch.no_grad` gets no gradient, and
a layer that several models share belongs to no client. Nothing of this raises an exception in
training. A tensor that is drawn and is no buffer is not stored either: a model that is built again,
as for an export, would have another one. What
forward changes is shared by all clients of a rank, unless it is a floating-point buffer that is
changed in place.

A parameter that forward does not use at all is not refused: a user's own loss may use it, or
forward for other inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcfed.core import rng, user_code
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import Inputs, zeros
from hpcfed.core.shapes import Shapes, each
from hpcfed.core.wording import join_few
from hpcfed.models.finetuning import Finetuning
from hpcfed.models.user_model import call_by_keyword, make, name_of, run
from hpcfed.models.without_weights import without_weights

INTERNAL = frozenset(vars(nn.Module()))  # attributes that every module has
FEW = 4  # names in a message
PLAIN = bool | int | float | complex | str | None


class Uses(TorchDispatchMode):
    """Records which parameters are used inside the block.

    Frozen ones do not count.
    registered: identities of the model's parameters; others are of layers that are no part of it.
    parameters: those that are used, by their identity.
    places: the user's line, as the beginning of a message, where each is first used that is not the
    model's, or is used under `torch.no_grad`.
    """

    def __init__(self, registered: Collection[int]) -> None:
        super().__init__()
        self.registered = registered
        self.parameters: dict[int, Tensor] = {}
        self.places: dict[int, str] = {}
        self.tracked: set[int] = set()  # those that are used outside of torch.no_grad

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled here, and torch would import its compiler for it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and not value.is_inference():
                tensor = value if value._base is None else value._base  # of weight.t(), weight
                if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                    self.note(tensor)
        return func(*args, **(kwargs or {}))

    def note(self, parameter: Tensor) -> None:
        """Record a use of this parameter."""
        key, tracked = id(parameter), torch.is_grad_enabled()
        self.parameters[key] = parameter
        if tracked:
            self.tracked.add(key)
        if key not in self.places and not (tracked and key in self.registered):
            self.places[key] = user_code.caller()


@lru_cache(64)
def refuse(
    name: str,
    target: Callable[..., Any],
    shape: tuple[int, ...],
    classes: int,
    d: int,
    train: tuple[str, ...],
    lora: int,
    by_output: bool,
) -> None:
    """Raise ConfigError if clients would not train a part of a user's model that wants a gradient.

    A model is examined once, however many runs the process makes.
    train, lora: of the job (`Finetuning`); what it does not train may do without a gradient.
    by_output: whether the loss depends on the model by its output alone. A loss of the user's own
    may reach what the output does not reach. Random streams stay as they are.
    """
    place = f"models.mix: {name}: {user_code.line_of(target)}"

    def second() -> nn.Module:
        with rng.scoped_everywhere(1, "untrained"):
            return make(name, target, shape, classes, d)

    with rng.scoped(0, "untrained"):
        with rng.scoped_everywhere(0, "untrained"):
            module = make(name, target, shape, classes, d)
        try:
            with without_weights():  # and memory, where the user's code allows it
                other = make(name, target, shape, classes, d)
        except ConfigError:
            other = make(name, target, shape, classes, d)
        others = set(map(id, other.parameters()))
        if shared := [
            n for n, p in module.named_parameters() if p.requires_grad and id(p) in others
        ]:
            raise ConfigError(
                f"{place}: each model that {name_of(target)} makes has the same {shared[0]}, so "
                f"that clients would overwrite each other's; make its layer anew for each model, "
                f"or copy it, as in self.layer = copy.deepcopy(LAYER)"
            )
        for attribute, value in unregistered(module):
            raise ConfigError(
                f"{place}: {attribute} is a plain {type(value).__name__}, so that what it holds is "
                f"no part of the model, and no client trains or sends it; make it "
                f"{container(value)}, or freeze what it holds with .requires_grad_(False)"
            )
        for attribute, value in drawn(module, second):
            raise ConfigError(
                f"{place}: {attribute} is drawn and is no buffer, so that it is not stored, and a "
                f"loaded or exported model would have another one: write "
                f"{registration(attribute, value)}"
            )
        x = zeros(shape, 2)
        try:
            if isinstance(shape, Shapes):
                call_by_keyword(name, module, shape)
            run(name, module.eval(), x)  # which makes the parameters of lazy layers
        except ConfigError:  # `models.build` reports it, with more advice
            return
        wanted = Finetuning(train, lora).wanted
        refuse_uses(name, module, x, lambda parameter: wanted(f"body.{parameter}"), by_output)
        del module, other
        with rng.scoped_everywhere(0, "untrained"):
            fresh = make(name, target, shape, classes, d)
        refuse_changes(name, fresh, x)


def refuse_uses(
    name: str, module: nn.Module, x: Inputs, trains: Callable[[str], bool], by_output: bool
) -> None:
    """Raise ConfigError for tensors that forward uses and that no client would train; see `refuse`.

    A gradient in evaluation or in training suffices, because some layers have one in only one of
    them.
    """
    names = {id(p): n for n, p in module.named_parameters()}
    # trained ones that are used in both modes, without a gradient
    missing = {key for key, parameter in names.items() if trains(parameter)}
    reached: set[str] = set()  # layers of which a parameter has a gradient
    for training in (False, True):
        module.train(training)
        uses, out = Uses(names), None
        with suppress(Exception), torch.enable_grad(), uses:
            out = module(x)
        if not isinstance(out, Tensor):  # `user_model.split` reports it
            return
        for key in uses.parameters.keys() - names.keys():
            raise ConfigError(
                f"models.mix: {name}: {uses.places[key]}forward uses a parameter of shape "
                f"{list(uses.parameters[key].shape)} that is no part of the model, so that no "
                f"client trains or sends it; make its layer in __init__, as self.layer = ..., or "
                f"freeze it with .requires_grad_(False)"
            )
        with_gradient = leaves(out)
        missing &= uses.parameters.keys() - with_gradient
        reached |= {layer_of(names[key]) for key in names.keys() & with_gradient}
        if not missing:
            return
    place, how = "", "under torch.no_grad()"
    parameters = [key for key in names if key in missing - uses.tracked]
    if parameters:
        place = uses.places[parameters[0]]
    elif by_output:
        place = f"{user_code.line_of(type(module).forward)}: "
        how = "in a way that gives them no gradient, such as .detach() or argmax"
        # one of a layer may have none, as a bias before a derivative
        parameters = [
            key for key in names if key in missing and layer_of(names[key]) not in reached
        ]
    if parameters:
        raise ConfigError(
            f"models.mix: {name}: {place}forward uses "
            f"{join_few([names[key] for key in parameters], FEW)} {how}, so that no client would "
            f"train them; change that, or freeze them with .requires_grad_(False)"
        )


def refuse_changes(name: str, module: nn.Module, x: Inputs) -> None:
    """Raise ConfigError if outputs depend on what earlier calls of forward have changed elsewhere
    than in a client's weights and floating-point buffers.

    module: a new one.  What forward changes and no output depends on may stay, such as a cache, or
    representations that a loss reads.
    """

    def output(training: bool) -> bytes:
        module.train(training)
        with torch.enable_grad(), rng.scoped(0, "changes", everywhere=True):
            out = content(module(x))
        for tensor, value in stored.values():
            tensor.data.copy_(value)
        return out

    stored: dict[str, tuple[Tensor, Tensor]] = {}
    replaced, changed, depends = list[str](), list[str](), False
    with suppress(Exception):  # of an output that is no tensor, too; `models.build` reports it
        if any(map(is_lazy, module.parameters())):
            output(False)
        with rng.scoped(0, "inputs"):  # those of zeros might hide a factor
            x = each(x, torch.rand_like)
        stored = {
            n: (tensor, tensor.detach().clone())
            for n, tensor in (*module.named_parameters(), *module.named_buffers())
            if tensor.is_floating_point()
        }
        before, outputs = changeable(module), [output(True)]
        replaced = [n for n, b in module.named_buffers() if n in stored and b is not stored[n][0]]
        after = changeable(module)
        changed = [n for n, value in after.items() if n not in before or value != before[n]]
        if changed and not replaced:
            outputs += [output(False), output(True), output(False)]
            depends = outputs[:2] != outputs[2:]
    if replaced:
        attribute = replaced[0].rpartition(".")[2]
        raise ConfigError(
            f"models.mix: {name}: {place_of(module, replaced[0])}forward replaces the buffer "
            f"{replaced[0]}, so that no client stores the new one; change it in place: write "
            f"self.{attribute}.copy_(...)"
        )
    if depends:
        attribute = changed[0].rpartition(".")[2]
        raise ConfigError(
            f"models.mix: {name}: {place_of(module, changed[0])}forward changes "
            f"{join_few(changed, FEW)}, on which later outputs depend; all clients of a rank share "
            f"that, and no checkpoint has it; make it a floating-point buffer that forward changes "
            f"in place, with self.register_buffer({attribute!r}, ...) and "
            f"self.{attribute}.copy_(...)"
        )


def place_of(module: nn.Module, attribute: str) -> str:
    """Return the user's forward of the layer with this attribute, as a message begins."""
    layer = module.get_submodule(layer_of(attribute))
    return f"{user_code.line_of(type(module if is_torchs(layer) else layer).forward)}: "


def changeable(module: nn.Module) -> dict[str, list[Any]]:
    """Return what forward may change and no client stores, by name, as values to be compared.

    That is buffers that are not floating-point, and numbers, texts, tensors and arrays in
    attributes of users' layers. Counters of batch normalisation are left out.
    """
    values: dict[str, list[Any]] = {
        name: [content(buffer)]
        for name, buffer in module.named_buffers()
        if not buffer.is_floating_point() and not name.endswith("num_batches_tracked")
    }
    registered = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for path, layer in module.named_modules():
        for attribute, value in {} if is_torchs(layer) else vars(layer).items():
            if attribute not in INTERNAL:
                values[f"{path}.{attribute}".removeprefix(".")] = [
                    content(part) if isinstance(part, Tensor | np.ndarray) else part
                    for leaf in leaves_in(value, set())
                    for part in ([leaf] if isinstance(leaf, PLAIN) else values_in(leaf))
                    if id(part) not in registered
                ]
    return values


def is_torchs(layer: nn.Module) -> bool:
    """Return whether the layer's class is one of torch."""
    return type(layer).__module__.partition(".")[0] == "torch"


def layer_of(parameter: str) -> str:
    """Return the path of the layer to which the parameter of this name belongs."""
    return parameter.rpartition(".")[0]


def leaves(out: Tensor) -> set[int]:
    """Return the identities of the tensors that get a gradient from an output."""
    nodes, visited, tensors = [out.grad_fn], set[Any](), set[int]()
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if isinstance(variable := getattr(node, "variable", None), Tensor):
            tensors.add(id(variable))
        nodes += [following for following, _ in node.next_functions]
    return tensors


def unregistered(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes with trainable tensors that are no parameters of the module.

    torch's own layers may hold such tensors, as an LSTM with a parametrised weight does.
    """
    registered = {id(p) for p in module.parameters()}
    for path, layer in module.named_modules():
        if is_torchs(layer):
            continue
        for attribute, value in vars(layer).items():
            if attribute not in INTERNAL and any(
                tensor.requires_grad and tensor.is_leaf and id(tensor) not in registered
                for tensor in tensors_in(value, set())
            ):
                yield f"{path}.{attribute}".removeprefix("."), value


def tensors_in(value: Any, visited: set[int]) -> Iterator[Tensor]:
    """Yield the tensors of a value, and of the layers and containers in it.

    visited: identities of the containers that were examined, because one may contain itself.
    """
    for part in leaves_in(value, visited):
        if isinstance(part, nn.Module):
            yield from part.parameters()
        elif isinstance(part, Tensor):
            yield part


def leaves_in(value: Any, visited: set[int]) -> Iterator[Any]:
    """Yield a value, or for containers what is in them; `visited` as for `tensors_in`."""
    if isinstance(value, Mapping | list | tuple | set):
        if id(value) not in visited:
            visited.add(id(value))
            for part in value.values() if isinstance(value, Mapping) else value:
                yield from leaves_in(part, visited)
    else:
        yield value


def drawn(module: nn.Module, make_second: Callable[[], nn.Module]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes with tensors or NumPy arrays that are not stored, but differ.

    make_second: makes a second model of the same class, under other random streams; it is called
    only if the first has such attributes.
    """
    attributes = unstored(module)
    if attributes:
        others = unstored(make_second())
        for name, (value, contents) in attributes.items():
            if contents != others.get(name, (None, []))[1]:
                yield name, value


def unstored(module: nn.Module) -> dict[str, tuple[Any, list[bytes]]]:
    """Return the attributes that hold tensors or arrays that are no parameters or buffers.

    By name: the value, and the bytes of these tensors and arrays. torch's own layers are left out,
    see `unregistered`.
    """
    registered = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    attributes = {}
    for path, layer in module.named_modules():
        if is_torchs(layer):
            continue
        for attribute, value in vars(layer).items():
            parts = [] if attribute in INTERNAL else list(leaves_in(value, set()))
            tensors = [t for part in parts for t in values_in(part) if id(t) not in registered]
            if tensors:
                name = f"{path}.{attribute}".removeprefix(".")
                attributes[name] = value, list(map(content, tensors))
    return attributes


def values_in(part: Any) -> Iterator[Tensor | np.ndarray]:
    """Yield a tensor with values, or an array of numbers, or the tensors of a layer."""
    if isinstance(part, nn.Module):
        for tensor in (*part.parameters(), *part.buffers()):
            yield from values_in(tensor)
    elif isinstance(part, Tensor):
        if not (is_lazy(part) or part.is_meta or part.is_quantized or part.layout != torch.strided):
            yield part
    elif isinstance(part, np.ndarray) and part.dtype != object:
        yield part


def content(value: Tensor | np.ndarray) -> bytes:
    """Return the bytes of the values, among which nan equals nan."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    row = value.detach().cpu().resolve_conj().contiguous().reshape(-1)
    return row.view(torch.uint8).numpy().tobytes()


def registration(attribute: str, value: Any) -> str:
    """Return what to write for an attribute that is drawn, so that it is stored."""
    name = attribute.rpartition(".")[2]
    if isinstance(value, Tensor):
        return f"self.register_buffer({name!r}, ...)"
    if isinstance(value, np.ndarray):
        return f"self.register_buffer({name!r}, torch.from_numpy(...))"
    if any(isinstance(part, nn.Module) for part in leaves_in(value, set())):
        return container(value)
    return f"self.register_buffer(name, ...) for each tensor in {name}"


def container(value: Any) -> str:
    """Return what to write for an attribute, so that the module registers what it holds."""
    if isinstance(value, Tensor):
        return "an nn.Parameter"
    if isinstance(value, nn.Module):
        return "an attribute by self.name = ..."
    parts = list(value.values() if isinstance(value, Mapping) else value)
    kind = "Parameter" if all(isinstance(part, Tensor) for part in parts) else "Module"
    return f"an nn.{kind}{'Dict' if isinstance(value, Mapping) else 'List'}"
