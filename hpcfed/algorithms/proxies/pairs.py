"""What methods share whose clients have a model of their own and a proxy, which alone is sent."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor

from hpcfed import Client, Federation
from hpcfed.algorithms.base import Averaging


class AveragedProxy(Averaging):
    """A method whose clients' models are a `Pair`; without averaging each keeps its own proxy."""

    accepts: ClassVar[str] = "any models"
    needs: ClassVar[Any] = ("proxy",)

    inference: Literal["own", "proxy"] = "own"
    """Which of a client's two models is evaluated."""

    def shared(self, name: str) -> bool:
        return self.averaging and in_proxy(name)

    def predictor(self, fed: Federation, client: Client, state: Any) -> Callable[[Any], Tensor]:
        model: Any = client.model
        return model.proxy if self.inference == "proxy" else model


def in_proxy(name: str) -> bool:
    """Return whether a tensor of a `Pair` is the proxy's."""
    return name.startswith("proxy.")
