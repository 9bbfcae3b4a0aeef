"""The GPU's way of summing, forced on tensors of the CPU, and a count of what is waited for."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hpcfed.comm import Serial
from hpcfed.core.averaging import mean_of
from hpcfed.core.params import Params, Per, Term
from hpcfed.federation.device_rows import DeviceRows

CPU = torch.device("cpu")


def bits(params: Params) -> dict[str, tuple]:
    """Type and bytes of each tensor."""
    return {name: (v.dtype, raw(v)) for name, v in params.items()}


def raw(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def mean_on_both(terms: Iterable[Term], keep: Params, per: Per) -> Params:
    """The mean of these terms, whose bits are those of both ways."""
    terms = list(terms)
    host = mean_of(terms, keep, per, Serial().sum)
    device = mean_of(terms, keep, per, Serial().sum, lambda rows: DeviceRows(rows, CPU))
    assert bits(host) == bits(device)
    return host


class Waits(TorchFunctionMode):
    """Counts the calls for which the host would wait if tensors were on a GPU."""

    WAITS = (
        Tensor.cpu,
        Tensor.tolist,
        Tensor.item,
        Tensor.__bool__,
        Tensor.__float__,
        Tensor.__int__,
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func in self.WAITS
        return func(*args, **(kwargs or {}))


class Launches(TorchDispatchMode):
    """Counts the operations that compute or copy, each of which is a launch on a GPU."""

    count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would else import its compiler, which takes a second."""
        return False

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += not op.is_view
        return op(*args, **(kwargs or {}))
