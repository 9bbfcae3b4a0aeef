"""The parts of every hpcfed model: a body that represents, and a linear head that classifies."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.core.errors import ConfigError


class Head(nn.Linear):
    """One linear layer, representation [n, d] -> logits [n, C], with or without a ReLU before it.

    With relu the representation that losses and prototypes use is still the one before the ReLU, as
    in FedClassAvg's code. The parameters are "weight" [C, d] and "bias" [C] in both cases.
    """

    def __init__(self, d: int, classes: int, relu: bool = False):
        super().__init__(d, classes)
        self.relu = relu

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(F.relu(z) if self.relu else z)


class NoHead(nn.Identity):
    """Takes the place of the head in a user's model that ends in no linear layer.

    The body is then the complete model, and its logits, [n, C], pass unchanged.
    reason: why the model has no head, for methods that need one (`RoundBased.reads_head`).
    """

    relu = False

    def __init__(self, classes: int, reason: str):
        super().__init__()
        self.in_features = self.out_features = classes
        self.reason = reason

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias"):
            raise ConfigError(f"{self.reason}; this method needs a head")
        return super().__getattr__(name)


def in_head(name: str) -> bool:
    """Return whether the tensor of this name belongs to the head of a `Model`."""
    return name.startswith("head.")


class Model(nn.Module):
    """A body and a head: [n, *shape] -> representation [n, d] -> logits [n, C].

    Parameters are named "body. ..." or "head.weight", "head.bias", the body's first.

    memory_format: of its weights. Convolutions are 1.1 to 1.5 times as fast with channels last; a
    user's whole model is contiguous, so that its forward may flatten with `view`.
    last: the name that the head had in a user's whole model; "" in other models.
    frozen: names of tensors that are neither trained nor sent (`hpcfed.models.finetuning`).
    bf16_batch: least batch for which run.precision = "bf16" computes some layer in bfloat16; 0 if
    that is not known (`hpcfed.models.precision`).
    """

    memory_format = torch.channels_last
    last = ""
    frozen: frozenset[str] = frozenset()
    bf16_batch: float = 0

    def __init__(self, body: nn.Module, head: Head | NoHead):
        super().__init__()
        self.body = body
        self.head = cast(Head, head)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Extended(Model):
    """A model to which a method adds parts: subclasses add them, and say how they predict.

    It has body and head of the model, and takes over how its weights lie in memory and are named.
    """

    def __init__(self, model: Model):
        super().__init__(model.body, model.head)
        self.memory_format, self.last = model.memory_format, model.last

    def copies(self) -> Iterable[tuple[str, nn.Module]]:
        """Return the parts that start as copies, with the prefix of what they are copies of."""
        return ()

    @torch.no_grad()
    def update_copies(self) -> None:
        """Give the parts that start as copies the weights that body and head have now."""
        weights = dict(self.named_parameters()) | dict(self.named_buffers())
        for prefix, part in self.copies():
            for name, value in (*part.named_parameters(), *part.named_buffers()):
                value.copy_(weights[prefix + name])


class Pair(nn.Module):
    """A client's own model and a proxy model, which all clients have.

    Parameters are named "own. ..." and "proxy. ...". It represents and classifies as `own` does, so
    code for one model works on it as well.
    bf16_batch: as of a `Model`.
    """

    bf16_batch: float = 0

    def __init__(self, large: Model, proxy: Model):
        super().__init__()
        self.own = large
        self.proxy = proxy

    @property
    def body(self) -> nn.Module:
        return self.own.body

    @property
    def head(self) -> Head:
        return self.own.head

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x)


def every_tensor(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name, with those that a state dict leaves out.

    A client has them all: buffers that are not persistent are averaged and kept as others are.
    """
    return {**dict(module.named_buffers()), **module.state_dict()}


def stem(body: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Split a row of layers after its first ReLU into two modules, first and rest.

    rest(first(x)) is body(x); the layers are the same objects.
    """
    layers = cast(nn.Sequential, body)
    end = next(i for i, layer in enumerate(layers, start=1) if isinstance(layer, nn.ReLU))
    return layers[:end], layers[end:]
