"""What FedTGP and FedORGP share: global prototypes that a small network at the server makes.

The network maps a learned vector e_c of each class c to its prototype. The server trains both on
the clients' class means.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from hpcfed import Client, Federation, Model, Params, RoundBased, Upload, rng
from hpcfed.algorithms.common_head.class_means import choose_predictor, class_means, join_means
from hpcfed.config.conditions import Unused, field, other_than
from hpcfed.training.server import fit

# otherwise prototypes change neither training nor predictions
PROTOTYPES_USED = ("lam", {"inference": other_than("head")})


@dataclass(frozen=True)
class State:
    """The server's prototypes, and the network that makes them.

    proto: prototypes, [C, d]; a row is nan if no client has sent the class yet.
    generator: vectors of the classes [C, d] as "embedding", and two linear layers.
    """

    proto: Params
    generator: Params


class GeneratedPrototypes(RoundBased):
    """A method whose server learns prototypes from class means; subclasses have its losses."""

    needs_classes: ClassVar[str] = "it learns prototypes of classes"
    accepts: ClassVar[str] = "a common head"
    unused: ClassVar[Unused] = {
        "weighting": "nothing is averaged over clients",
    }

    lam: NonNegativeFloat = 10.0
    """Weight of the distance of representations to their class's prototype; 0 is local training."""
    inference: Literal["prototype", "head"] = "prototype"
    """Predict the class of the nearest prototype, or with the client's own head."""
    server_epochs: NonNegativeInt = field(100, used_if=PROTOTYPES_USED)
    """Passes of the server over the class means of a round; 0: the prototypes stay as they start.
    """
    server_lr: PositiveFloat = field(0.01, used_if="server_epochs")
    """Learning rate of the server, by plain SGD."""
    server_batch: PositiveInt = field(10, used_if="server_epochs")
    """Class means in one step of the server."""

    @abstractmethod
    def to_prototypes(self, z: Tensor, proto: Tensor) -> Tensor:
        """Return the distance of representations to their prototypes, a mean over examples.

        z, proto: [n, d]; a row of proto that is nan has no prototype yet and contributes 0.
        """

    @abstractmethod
    def server_loss(self, z: Tensor, y: Tensor, proto: Tensor, margin: float) -> Tensor:
        """Return the server's loss on a batch of class means, a scalar.

        z: class means, [n, d].  y: their classes, [n].  proto: all prototypes, [C, d].  margin: as
        `margin` returns it.
        """

    def margin(self, z: Tensor, y: Tensor) -> float:
        """Return what the loss of this round needs of all class means together."""
        return 0.0

    def shared(self, name: str) -> bool:
        return False

    def init(self, fed: Federation) -> State:
        C, d = fed.initial()["head.weight"].shape
        with rng.scoped(fed.seed, "prototypes"):
            layers = {"first": nn.Linear(d, d), "last": nn.Linear(d, d)}
            weights = {
                "embedding": nn.Embedding(C, d).weight,
                **{f"{n}.{part}": v for n, f in layers.items() for part, v in f.named_parameters()},
            }
        generator = Params(weights).clone().map(lambda value: value.to(fed.device))
        return State(Params(proto=torch.full((C, d), torch.nan, device=fed.device)), generator)

    def model(self, state: State) -> Params:
        return state.proto

    def receive(self, client: Client, state: Params) -> None:
        pass

    def loss(self, client: Client, state: Params, model: Model, x: Any, y: Tensor) -> Tensor:
        z = model.body(x)
        value = client.task.loss(model.head(z), y)
        return value + self.lam * self.to_prototypes(z, state["proto"][y]) if self.lam else value

    def predictor(self, fed: Federation, client: Client, state: State) -> Callable[[Any], Tensor]:
        return choose_predictor(client.model, state.proto["proto"], self.inference)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        self.train(fed, client, fed.down(client, self.offer(fed, client, state)), t)
        return class_means(fed, client)

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> State:
        sent = fed.at_root(dict(uploads))
        return State(*fed.on_root(lambda: self.learn(fed, state, list(sent.values()))))

    def learn(
        self, fed: Federation, state: State, sent: list[dict[str, Tensor]]
    ) -> tuple[Params, Params]:
        """Return the prototypes and their network after training on all class means."""
        z, y = join_means(sent)
        margin = self.margin(z, y)

        def loss(generator: Params, rows: Tensor) -> Tensor:
            return self.server_loss(z[rows], y[rows], prototypes(generator), margin)

        generator = state.generator
        if self.server_epochs:
            generator = fit(
                fed,
                generator,
                loss,
                torch.from_numpy,
                len(y),
                "prototypes",
                fed.t,
                epochs=self.server_epochs,
                size=self.server_batch,
                lr=self.server_lr,
            )
        sent_before = ~state.proto["proto"].isnan().any(1)
        valid = sent_before | F.one_hot(y, len(sent_before)).any(0)
        proto = torch.where(valid[:, None], prototypes(generator), torch.nan)
        return Params(proto=proto), generator


def prototypes(generator: Params) -> Tensor:
    """Return the prototypes of all classes that this network makes, [C, d]."""
    hidden = F.linear(generator["embedding"], generator["first.weight"], generator["first.bias"])
    return F.linear(F.relu(hidden), generator["last.weight"], generator["last.bias"])
