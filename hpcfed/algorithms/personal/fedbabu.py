"""FedBABU: the body alone is trained and averaged; the head stays random until clients adapt it.

Oh et al. (FedBABU: Toward Enhanced Representation for Federated Image Classification), ICLR 2022,
arXiv:2106.06042, algorithm 1. All clients have one head h, which is drawn at random. After the last
round each client fine-tunes the model on its own examples.

Objective: F_k(b, h)
Server: b <- mean_k b_k
Round:
1. The server sends the body b to the cohort.
2. Each client trains the body, with the head fixed at its initial values.
3. It sends the body b_k.
4. The server takes the mean of the bodies.
5. After the last round each client trains its own head and body, or one of them.

Deviations: the last step has the learning rate of the last round.
"""

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload
from hpcfed.algorithms.base import score_server
from hpcfed.config.conditions import field
from hpcfed.models.model import in_head


class FedBABU(RoundBased):
    """With final_epochs = 0 each client ends with the global model."""

    guide = Guide(
        data="few classes per client",
        sent="the body",
        won="few classes per client, after fine-tuning: above FedAvg, FedPer, FedRep, Ditto",
    )

    reads_head: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""
    final_epochs: NonNegativeInt = 5
    """Epochs in which all clients fine-tune the model after the last round."""
    final_part: Literal["all", "head", "body"] = field("all", used_if="final_epochs")
    """What they fine-tune: the whole model, its head, or its body."""

    def shared(self, name: str) -> bool:
        return not in_head(name)

    def init(self, fed: Federation) -> Params:
        fed.start_alike()
        return super().init(fed)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        self.train(fed, client, download, t, only=self.shared)
        sent = client.params(self.shared)
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Return the score of the common body with the common head, if evaluate.common."""
        return score_server(fed, fed.architectures[0], Params({**fed.initial(), **state}))

    def finish(self, fed: Federation, state: Params, t: int) -> Params:
        only: Any = {"all": None, "head": in_head, "body": self.shared}[self.final_part]
        for client in fed.mine(range(fed.K)):
            self.receive(client, state)
            if self.final_epochs:
                self.train(
                    fed, client, state, t, epochs=self.final_epochs, only=only, phase="final"
                )
        return state
