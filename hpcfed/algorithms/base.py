"""RoundBased: a synchronous method as a few hooks, whose defaults together are FedAvg."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from hpcfed.config.parts import Part
from hpcfed.params import Mean, Params
from hpcfed.training.local import sgd

if TYPE_CHECKING:
    from hpcfed.client import Client
    from hpcfed.federation import Federation

State = Any  # Params, or a frozen dataclass of them: passed in, returned, never kept in the algorithm


class RoundBased(Part):
    """A method that works in synchronous rounds; an instance is its own frozen record of hyper-parameters."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the mean: its number of training examples, or 1."""

    accepts: ClassVar[str] = "one architecture"  # or "a common head", "any models": which clients can take part
    views: ClassVar[int] = 1  # augmented copies of a batch that the loss gets
    keeps_stragglers: ClassVar[bool] = False  # partial work counts; else stragglers are left out of the round

    def traffic(self, fed: Federation) -> tuple[int, int]:
        """Bytes that a client receives and sends in one round, before anything is run."""
        bytes_ = fed.initial(self.shared).nbytes
        return bytes_, bytes_

    def cohort(self, fed: Federation, t: int) -> list[int]:
        """The clients of round t, in id order, the same on all ranks."""
        return fed.sample(t)

    def init(self, fed: Federation) -> State:
        """What the server starts with."""
        return fed.initial(self.shared)

    def shared(self, name: str) -> bool:
        """Whether the tensor of this name is exchanged; else it stays with its client."""
        return True

    def receive(self, client: Client, state: State) -> None:
        """Make the client's model the one that it has at the start of a round."""
        client.load(state)

    def loss(self, client: Client, state: State, model: nn.Module, x: Any, y: Tensor) -> Tensor:
        """The local objective on one batch, a scalar."""
        return F.cross_entropy(model(x), y)

    def weight(self, client: Client) -> float:
        """The client's weight in the mean."""
        return float(client.n) if self.weighting == "samples" else 1.0

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Mean:
        """One client's round: download, train, upload."""
        self.receive(client, fed.down(client, state))
        sgd(fed, client, t, partial(self.loss, client, state), views=self.views)
        return Mean.of(client.params(self.shared), self.weight(client))

    def server(self, state: State, mean: Params) -> State:
        """The new state from the old one and the mean of the uploads."""
        return mean

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        """One round with a cohort of at least one; replaced only by methods with more than one exchange."""
        uploads = ((c.id, self.local(fed, c, state, t)) for c in fed.mine(cohort))
        return self.server(state, fed.mean(uploads, keep=state))
