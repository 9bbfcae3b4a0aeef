"""A GPU that is not there: tensors that say they are on it, and that the CPU computes.

Inside `pretended_gpu()` torch sees one GPU, cuda:0. What is made there or moved there is an `Away`,
a tensor that refuses what a GPU's tensor refuses: to meet tensors of the host in an operation, to
become an array before it is copied, and to be a weight or a statistic of batch normalisation unless
it begins where cuDNN can read it. So code that runs here has all its tensors where they belong.
`WAITS.count` counts where the host would wait until the GPU has done all its work, and
`LOCKED.count` buffers of page-locked memory. Nothing is said of kernels, streams, memory and speed:
those are the CPU's, as are the bits.

C++ sees a CPU, so what is composed there would make its own tensors on the host: `one_hot` and `to`
are replaced, and what a derivative makes or converts counts as the GPU's. What asks `device` in
Python sees a GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from hpcfed.core.payload import on_device
from hpcfed.models import flat

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
# they take tensors of both: copies, and places in a tensor that the host knows
BOTH = {
    aten.copy_.default,
    aten._to_copy.default,
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
# their results are values or sizes that the host has to know
READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten._unique2.default,
}
COPIES_OR_READS = READS | {  # in which the host may wait until a GPU has done all its work
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten.copy_.default,
    aten._to_copy.default,
}
WAITS, LOCKED = SimpleNamespace(count=0), SimpleNamespace(count=0)
base_to, base_empty_like = Tensor.to, torch.empty_like


class Away(Tensor):
    """A tensor on the pretended GPU.

    there: its values, a tensor on the CPU.
    """

    there: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    device = property(lambda self: GPU)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, host: Tensor) -> Away:
        tensor = Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=host.device,
        )
        tensor.there = host
        return tensor

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(op, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Away({self.there!r})"

    def to(self, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        """`Tensor.to`, which in C++ would find a tensor on the CPU."""
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype)
        device, dtype, asynchronous, layout = torch._C._nn._parse_to(*args, **kwargs)
        how = {"dtype": dtype, "memory_format": layout, "non_blocking": asynchronous or None}
        how = {name: wanted for name, wanted in how.items() if wanted is not None}
        if device is not None and not on_gpu(device):
            return aten._to_copy(self, device=HOST, **how)
        if copy:
            return aten._to_copy(self, **how)
        return base_to(self, **how) if how else self

    def cpu(self, *_: Any, **__: Any) -> Tensor:
        return aten._to_copy(self, device=HOST)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy


def on_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def compute(op: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on the CPU; its result is where a GPU would have it.

    Raises RuntimeError where tensors of the GPU and of the host meet.
    """
    away: list[Away] = []
    here: list[Tensor] = []
    plain = [on_cpu(value, away, here) for value in args]
    how = {name: on_cpu(value, away, here) for name, value in kwargs.items()} if kwargs else {}
    traits = TRAITS.get(id(op)) or find_traits(op)
    if here and away and not traits.both and any(tensor.dim() for tensor in here):
        shapes = [list(tensor.shape) for tensor in here if tensor.dim()]
        raise RuntimeError(f"{op}: all tensors must be on one device, but {shapes} are on the host")
    if traits.normalises:
        check_places(op, plain)
    if traits.may_wait:
        WAITS.count += waits(op, args, kwargs)
    goes_there = isinstance(args[0], Away) if op is aten.copy_.default else bool(away)
    if how:
        LOCKED.count += bool(how.pop("pin_memory", False))
        if how.get("device") is not None:
            if torch._C._current_autograd_node() is None:
                goes_there = on_gpu(how["device"])
            else:  # a derivative asks for the device that C++ sees
                goes_there = bool(away) or not here
            how["device"] = HOST
    result = op(*plain, **how)
    if not goes_there:
        return result
    if not traits.aliases:
        return as_away(result, {})
    by_id = {id(tensor.there): tensor for tensor in away}  # operations in place return these
    result = as_away(result, by_id)
    if not away:
        return result
    if traits.changes_form:
        return return_and_correct_aliasing(op, args, dict(kwargs), result)
    if traits.is_view:
        for view in result if isinstance(result, list | tuple) else (result,):
            torch._functionalize_unsafe_set(view, args[0])
    return result


class Traits(NamedTuple):
    """What is to be done about an operation.

    normalises: it is batch normalisation, or its derivative. both: it takes tensors of the GPU and
    of the host. may_wait: the host may wait in it. aliases: a result shares memory with an
    argument. is_view: with the first one, which does not change. changes_form: of an argument, in
    place.
    """

    normalises: bool
    both: bool
    may_wait: bool
    aliases: bool
    is_view: bool
    changes_form: bool


TRAITS: dict[int, Traits] = {}  # by the operation's id: there is one object of each


def find_traits(op: Any) -> Traits:
    """Return the traits of an operation, and note them in TRAITS."""
    shared = [value.alias_info for value in op._schema.returns if value.alias_info is not None]
    first = op._schema.arguments[0].alias_info if op._schema.arguments else None
    is_view = bool(shared) and first is not None and not any(info.is_write for info in shared)
    changes_form = torch.Tag.inplace_view in op.tags
    normalises = "batch_norm" in op._schema.name
    waits = op in COPIES_OR_READS
    traits = Traits(normalises, op in BOTH, waits, bool(shared), is_view, changes_form)
    return TRAITS.setdefault(id(op), traits)


def check_places(op: Any, values: Any) -> None:
    """Raise RuntimeError for a weight or a statistic that does not begin at 16 bytes.

    cuDNN ends with "misaligned address" then.
    """
    of_channels = [v for v in values if isinstance(v, Tensor) and v.dim() == 1]
    if any(value.data_ptr() % 16 for value in of_channels):
        raise RuntimeError(f"{op}: a weight or a statistic has a misaligned address")


NO_TENSORS = {  # types of arguments
    *(int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout),
    torch.memory_format,
}


def on_cpu(value: Any, away: list[Away], here: list[Tensor]) -> Any:
    """Return an argument with the CPU's tensors in place of the GPU's.

    away, here: get the tensors of the GPU and of the host that are in it.
    """
    kind = type(value)
    if kind is Away:
        away.append(value)
        return value.there
    if kind in NO_TENSORS:
        return value
    if isinstance(value, Tensor):
        here.append(value)
    elif isinstance(value, list | tuple):
        return kind([on_cpu(item, away, here) for item in value])
    return value


def as_away(value: Any, by_id: Mapping[int, Away]) -> Any:
    """Return a result with the GPU's tensors in place of the CPU's, old ones where it has them."""
    if isinstance(value, Tensor):
        old = by_id.get(id(value))
        return Away(value) if old is None else old
    if isinstance(value, list | tuple):
        return type(value)([as_away(item, by_id) for item in value])
    return value


def waits(op: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether the host waits in this operation for the work of the GPU."""
    if op in READS:
        return isinstance(args[0], Away)
    if op in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
        of_gpu = isinstance(args[0], Away)
        return any(
            at.dtype == torch.bool if isinstance(at, Away) else of_gpu
            for at in args[1]
            if at is not None
        )
    if kwargs.get("non_blocking") or torch._C._current_autograd_node() is not None:
        return False
    if op is aten.copy_.default:
        return isinstance(args[0], Away) != isinstance(args[1], Away) and not any(args[2:])
    if op is aten._to_copy.default and kwargs.get("device") is not None:
        return isinstance(args[0], Away) != on_gpu(kwargs["device"])
    return False


class Pretend(TorchDispatchMode):
    """Makes tensors on the pretended GPU where they are wanted there."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch would load its compiler, and ask it at each operation."""
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(op, args, kwargs or {})


class Generator(torch.Generator):
    """A generator of the CPU that says it is on the device that was asked for."""

    def __new__(cls, device: Any = HOST) -> Generator:
        return super().__new__(cls, HOST)

    def __init__(self, device: Any = HOST):
        self.place = torch.device(device)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    def get_state(self) -> Tensor:
        """As many bytes as that of a GPU's generator, if it is one."""
        state = super().get_state()
        if self.place == HOST:
            return state
        return torch.tensor(list(hashlib.sha256(state.numpy()).digest()[:16]), dtype=torch.uint8)


class Stream:
    """A stream on which all is done at once."""

    def __init__(self, *_: Any, **__: Any):
        self.wait_stream = self.synchronize = lambda *_: None


def empty_like(like: Tensor, *, device: Any = None, pin_memory: bool = False, **how: Any) -> Tensor:
    """`torch.empty_like`, also in threads, where `Pretend` is not."""
    tensor = base_empty_like(like.there if isinstance(like, Away) else like, **how)
    return Away(tensor) if on_gpu(like.device if device is None else device) else tensor


def one_hot(x: Tensor, num_classes: int) -> Tensor:
    return (x.unsqueeze(-1) == torch.arange(num_classes, device=x.device)).long()


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to` of a tensor on the host."""
    like = args[0] if args and isinstance(args[0], Away) and not isinstance(self, Away) else None
    return base_to(self, *args, **kwargs) if like is None else base_to(self, GPU, like.dtype)


def make_skeleton(real: Callable[..., None]) -> Callable[..., None]:
    """`Skeleton.__init__`, which gives parameters other values: here they are other parameters."""

    def make(self: flat.Skeleton, model: Any, device: Any = HOST) -> None:
        real(self, model, HOST)
        if not on_gpu(device):
            return
        model.to(GPU)
        self.flat = self.flat.to(GPU)
        self._views = self.layout.views(self.flat)
        copies: dict[int, Tensor] = {}  # by the tensor that it takes the place of
        for path, module in model.named_modules():
            for tensors in (module._parameters, module._buffers):
                for name, old in tensors.items():
                    view = self._views.get(f"{path}.{name}".lstrip("."))
                    if old is None or view is None:
                        continue
                    is_parameter = isinstance(old, nn.Parameter)
                    new = nn.Parameter(view, old.requires_grad) if is_parameter else view
                    tensors[name] = copies.setdefault(id(old), new)

    return make


def cuda() -> dict[str, Any]:
    """What stands for the names in torch.cuda that a run's rounds use."""
    stream, card = Stream(), SimpleNamespace(total_memory=80 * 2**30, uuid="GPU-0")
    return {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "device": lambda device: nullcontext(),
        "get_device_properties": lambda device: card,
        "Stream": Stream,
        "stream": lambda stream: nullcontext(),
        "current_stream": lambda device=None: stream,
        "synchronize": lambda device=None: None,
        "memory_allocated": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 1,
        "default_generators": (torch.default_generator,),
    }


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Inside, torch sees a GPU."""
    with ExitStack() as stack:
        for name, value in cuda().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for place, name, value in (
            (torch, "Generator", Generator),
            (torch, "empty_like", empty_like),
            (torch.nn.functional, "one_hot", one_hot),
            (Tensor, "to", to),
            (flat.Skeleton, "__init__", make_skeleton(flat.Skeleton.__init__)),
        ):
            stack.enter_context(mock.patch.object(place, name, value))
        # a module that is moved gets other parameters, not other values of its own
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swaps)
        # torch.tensor(..., device=...) makes its tensor on the CPU, and moves it so that we see it
        lifts = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts)
        stack.enter_context(Pretend())
        yield


def on_host(value: Any) -> Any:
    """The value, or the fields of a dataclass, with all tensors on the host."""
    if is_dataclass(value):
        return replace(value, **{f.name: on_host(getattr(value, f.name)) for f in fields(value)})
    return on_device(value, HOST)
