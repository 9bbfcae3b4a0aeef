"""Models that have names and shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

DRAWS: set[Callable] = {torch.Tensor.normal_, torch.nn.init.normal_}


class _Unfilled(TorchFunctionMode):
    """Draws no values for tensors that have none: torch loads its compiler and sympy for `normal_`.

    That takes a second on each rank, for each model with an embedding.
    """

    def __torch_function__(
        self,
        function: Callable,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if function in DRAWS:
            tensor = args[0] if args else named["tensor"]
            if tensor.is_meta:
                return tensor
        return function(*args, **named)


@contextmanager
def without_weights() -> Iterator[None]:
    """Inside, new tensors have no memory and no values: they are on torch's meta device."""
    with torch.device("meta"), _Unfilled():
        yield
