"""Exits: copies of a model's last part behind its inner blocks, so that each depth classifies.

A model with N equal blocks in a row has an exit behind each `every` of them, and its own last part
behind all of them. The part of the model from an inner block on is the exit's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from hpcfed.core.errors import ConfigError
from hpcfed.models.depths import find_row, index
from hpcfed.models.model import Extended, Model


class MultiExit(Extended):
    """A model with exits: its output is the mean of their logits, [n, C].

    Parameters of the exit behind block i, counted from 1, are named "exits.i.body. ..." and
    "exits.i.head. ...". Body and head alone are the last exit.
    row: name of the row of blocks in the body, "blocks"; "" without exits.
    """

    def __init__(self, model: Model, row: str, exits: Mapping[int, Model]):
        super().__init__(model)
        self.row = row
        self.exits = nn.ModuleDict({str(i): module for i, module in exits.items()})

    def copies(self) -> Iterable[tuple[str, nn.Module]]:
        return (("", module) for module in self.exits.values())

    def logits(self, x: Tensor) -> list[Tensor]:
        """Return the logits of all exits, [n, C] each, the shallowest first."""
        if not self.exits:
            return [self.head(self.body(x))]
        outputs = []
        for name, module in parts(self.body, self.row):
            x = module(x)
            if (
                name.startswith(f"{self.row}.")
                and (i := str(index(self.row, name) + 1)) in self.exits
            ):
                outputs.append(self.exits[i](x))
        return [*outputs, self.head(x)]

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(self.logits(x)).mean(0)


def add_exits(model: Model, every: int) -> MultiExit:
    """Return the model with an exit behind each `every` blocks of its longest row of equal blocks.

    An exit starts as a copy of what follows the blocks. A model without such a row gets no exits.
    Raises ConfigError for a body that is no `nn.Sequential`, whose blocks cannot run apart.
    """
    shapes = {name: tuple(value.shape) for name, value in model.body.state_dict().items()}
    row, length = find_row(shapes)
    tail = nn.Sequential()
    if row:
        check_sequential(model.body, row)
        tail = following(model.body, row)
    exits = {i: deepcopy(Model(tail, model.head)) for i in range(every, length, every)}
    return MultiExit(model, row, exits)


def check_sequential(body: nn.Module, row: str) -> None:
    """Raise ConfigError unless the row, and all modules around it, run their parts in turn."""
    steps = row.split(".")
    for end in range(len(steps) + 1):
        module = body.get_submodule(".".join(steps[:end]))
        if type(module).forward is not nn.Sequential.forward:
            raise ConfigError(
                f"exits stand behind blocks that run one after the other, but the body of this "
                f"model is a {type(body).__name__}, whose row of blocks, {row}, is part of a "
                f"{type(module).__name__}\n  take a body of nn.Sequential, such as resmlp-4 or "
                f"rescnn-4"
            )


def parts(body: nn.Module, row: str, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Return the body's parts in the order in which they run: each block of the row is one."""
    step, _, rest = row.partition(".")
    for name, module in body.named_children():
        if row and name == step:
            yield from parts(module, rest, f"{prefix}{name}.")
        else:
            yield prefix + name, module


def following(body: nn.Module, row: str) -> nn.Sequential:
    """Return the parts of the body that follow the row, under the same names."""
    step, _, rest = row.partition(".")
    children = list(body.named_children())
    place = [name for name, _ in children].index(step)
    inner = {step: following(body.get_submodule(step), rest)} if rest else {}
    return nn.Sequential(OrderedDict({**inner, **dict(children[place + 1 :])}))
