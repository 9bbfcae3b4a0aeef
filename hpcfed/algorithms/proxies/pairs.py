"""What methods share whose clients have a model of their own and a proxy, which alone is sent."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor

from hpcfed import Client, Federation, RoundBased
from hpcfed.algorithms.base import Averaging


class WithProxy(RoundBased):
    """A method whose clients' models are a `Pair`."""

    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("proxy",)

    inference: Literal["own", "proxy"] = "own"
    """Which of a client's two models is evaluated."""

    def shared(self, name: str) -> bool:
        return name.startswith("proxy.")

    def predictor(self, fed: Federation, client: Client, state: Any) -> Callable[[Any], Tensor]:
        model: Any = client.model
        return model.proxy if self.inference == "proxy" else model


class AveragedProxy(Averaging, WithProxy):
    """A method whose proxy is averaged; without averaging each client keeps its own."""

    accepts: ClassVar[str] = "any models"

    def shared(self, name: str) -> bool:
        return self.averaging and WithProxy.shared(self, name)
