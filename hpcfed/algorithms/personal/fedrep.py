"""FedRep: clients share the body; each trains its own head first, then the body.

Collins et al., ICML 2021, arXiv:2102.07078, algorithm 1 and section 5. After the last round all
clients train their heads once more.

Objective: F_k(b, h_k)
Server: b <- sum_k p_k b_k
Round:
1. The server sends the body b to the cohort.
2. Each client trains its own head h_k, with the body fixed.
3. It trains the body, with the head fixed.
4. It sends the body; the head stays.
5. The server takes the weighted mean of the bodies.

Deviations: bodies are weighted by examples, as in the authors' code (the paper has clients of one
size). Running statistics of batch normalisation, part of the body, follow the data in both phases.
The code's 10 local epochs, 9 and 1, are the defaults; local.epochs and local.steps have no effect.
"""

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeInt

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload
from hpcfed.config.conditions import Unused
from hpcfed.models.model import in_head


class FedRep(RoundBased):
    """FedRep equals FedAvg, bit for bit, with head_epochs = 0 and personal = "none"."""

    guide = Guide(
        data="few classes per client",
        sent="the body",
        won="few classes per client: above FedAvg, LG-FedAvg, Per-FedAvg",
    )

    reads_head: ClassVar[bool] = True
    unused: ClassVar[Unused] = {
        "local.epochs": "algorithm.head_epochs and body_epochs replace it",
        "local.steps": "algorithm.head_epochs and body_epochs replace it",
    }
    trains_once: ClassVar[bool] = False

    personal: Literal["head", "none"] = "head"
    """The part that clients do not share: the head, or nothing."""
    head_epochs: NonNegativeInt = 9
    """Epochs in which the head is trained and the body is fixed."""
    body_epochs: NonNegativeInt = 1
    """Epochs in which the body is trained and the head is fixed."""
    final_epochs: NonNegativeInt = 10
    """Epochs in which all clients train their heads after the last round."""

    @property
    def alone(self) -> dict[str, Any]:
        epochs = self.head_epochs + self.body_epochs
        return super().alone | {"local.epochs": epochs, "local.steps": None}

    def shared(self, name: str) -> bool:
        return self.personal == "none" or not in_head(name)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        self.train_head(fed, client, download, t, self.head_epochs, "head")
        if self.body_epochs:
            only = self.shared if self.personal == "head" else None
            self.train(fed, client, download, t, epochs=self.body_epochs, only=only)
        sent = client.params(self.shared)
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)

    def train_head(
        self, fed: Federation, client: Client, received: Params, t: int, epochs: int, phase: str
    ) -> None:
        """Train only the head, for these epochs."""
        if epochs:
            self.train(fed, client, received, t, epochs=epochs, only=in_head, phase=phase)

    def finish(self, fed: Federation, state: Params, t: int) -> Params:
        for client in fed.mine(range(fed.K)):
            self.receive(client, state)
            self.train_head(fed, client, state, t, self.final_epochs, "final")
        return state
