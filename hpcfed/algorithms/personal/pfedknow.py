"""pFedKnow: clients without labels prune personal models; a server with labels teaches them.

The teachers are a large model of the server and the models of the other clients, weighted by how
similarly they are pruned.

Wang et al. (Knowledge-Enhanced Semi-Supervised Federated Learning for Aggregating Heterogeneous
Lightweight Clients in IoT), SDM 2023, arXiv:2303.02668, and its public code (JackqqWang/pfedknow,
commit 826fa2b), on which all details rest; the paper's text was not at hand.

Before the first round the server trains a large model (models.server) on the public data, whose
labels it has, and then a small one by CE + lam tau^2 KL to the large one; both stay as they are.
Clients never learn from their labels. A client's first model is the small one. Channels are dropped
by network slimming. The model is sure of an example with logits z of the C classes, as it arrives,
if C / sum_c (relu(z_c) + 1) < threshold; if it is sure of none, all count.

The server averages nothing; each model of the round learns from the labelled data. s are soft
predictions at temperature tau, and c_kl is the cosine of the masks of clients k and l, divided by
the sum of those of all others of the round. Bytes follow the masks in both directions; in its first
round a client also downloads the small model.

Objective: CE_pseudo
Server: w_k <- argmin_w CE + lam tau^2 KL(sum_l c_kl s_l || s_w) + lam tau^2 KL(s_large || s_w)
Round:
1. A client trains its model on the classes that the model predicts as it arrives.
2. In its first `prunings` rounds it drops the share `rate` of the channels left; in every round it
   then trains on examples of which the model was sure.
3. It sends the pruned model and its mask.
4. The server teaches each model with labels, its large model and the other models, weighted by how
   similar their masks are.
5. Each client receives its own model back, in its pruned form.

Deviations: the code softens what is soft already and sums over the batch; here KL is a mean over
examples times tau^2. In the code later clients learn from peers that have been taught already; here
they learn from the models as they were sent. In the code at least one more channel is dropped; here
exactly the share is, and a layer keeps at least one. The code leaves out an epoch's last batch if
it is smaller than the others, and augments the labelled images; here every example counts, as it
is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import (
    Client,
    ConfigError,
    Federation,
    Guide,
    LocalSteps,
    Paired,
    Params,
    RoundBased,
    Shard,
    Upload,
)
from hpcfed.algorithms.base import (
    OWN_BATCHES,
    OWN_LOSS,
    check_public_labels,
    find_units,
    score_server,
)
from hpcfed.algorithms.personal.slimming import Pruned, Slimming, peer_weights
from hpcfed.config.conditions import Unused, field
from hpcfed.core.payload import bytes_of_bits
from hpcfed.models.widths import Units
from hpcfed.training.infer import logits, outputs
from hpcfed.training.losses import distil, soften
from hpcfed.training.server import fit, fit_targets, forward, lay_out, parameters, predictor

MASK = "mask"  # in a client's memory: the channels left of its model, bool, as in `Slimming`
ROUNDS = "rounds"  # in a client's memory: in how many it took part; in the first ones it prunes


Peers = Mapping[int, Mapping[str, Tensor]]  # masks, and logits of the labelled data, [N, C]


@dataclass(frozen=True)
class State:
    """The server's models; clients' models stay with the clients.

    large, small: the server's models.
    logits: those of the large model on the labelled data, [N, C]. They are empty, [0, C], before
    the first round, in which both models are trained.
    """

    large: Params
    small: Params
    logits: Tensor


class PFedKnow(RoundBased):
    """With rate = 0 nothing is pruned, and all peers weigh alike."""

    guide = Guide(
        data="different labels, unknown to clients; labelled data at the server",
        sent="pruned models",
        won="semi-supervised images, above pFedMe and FedMD",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    needs: ClassVar[tuple[str, ...]] = ("public", "server")
    keeps_weights: ClassVar[bool | None] = True
    unused: ClassVar[Unused] = {
        **OWN_LOSS,
        **OWN_BATCHES,
        "weighting": "models are not averaged",
    }
    trains_once: ClassVar[bool] = False

    large_epochs: NonNegativeInt = 200
    """Epochs of the large model over the labelled data, before the first round."""
    small_epochs: NonNegativeInt = 30
    """Epochs of the small model after that."""
    rate: float = Field(0.1, ge=0, lt=1)
    """Share of a model's channels that each pruning drops."""
    prunings: PositiveInt = field(2, used_if="rate")
    """Maximum number of prunings of a model, one in each of its client's first rounds."""
    threshold: NonNegativeFloat = field(0.7, used_if="finetune_epochs")
    """Largest uncertainty, from 0 to 1, of an example on which a pruned model is trained."""
    finetune_epochs: NonNegativeInt = 3
    """Epochs of the pruned model over these."""
    lam: NonNegativeFloat = 1.0
    """Weight of each of the two KL."""
    tau: PositiveFloat = field(2.0, used_if="lam")
    """Temperature of soft predictions."""
    server_epochs: NonNegativeInt = 5
    """Epochs over the labelled data in which a client's model is taught in its round."""
    server_lr: PositiveFloat = 0.01
    """Learning rate of all training on the server, by plain SGD."""
    server_batch: PositiveInt = 10
    """Labelled examples in one step of it."""

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return the most: a first round, with the first model and an unpruned taught one."""
        full = fed.shapes(k=k).nbytes
        return 2 * full, full + bytes_of_bits(slimming(fed).channels)

    def init(self, fed: Federation) -> State:
        kind = fed.architectures[0]
        check_public_labels(fed, "take public data with the same classes")
        if self.rate and not slimming(fed).scales:
            raise ConfigError(
                f"pfedknow prunes channels by the scales of batch normalisation, of which {kind} "
                f"has none\n  take another model, resnet18 for one, or set algorithm.rate = 0"
            )
        large = fed.initial(architecture=fed.job.models.server)
        return State(large, fed.initial(), torch.zeros(0, fed.classes, device=fed.device))

    def receive(self, client: Client, state: State) -> None:
        """Do nothing: a client keeps its model, which the server has taught."""

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        return score_server(fed, fed.job.models.server, state.large)

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        if not len(state.logits):
            state = State(*fed.on_root(lambda: self.begin(fed, state)))
        sent = fed.run(cohort, lambda client: self.local(fed, client, state, t))
        models = {k: slimming(fed).received(parts) for k, parts in sent.items()}
        with fed.clock("server"):
            mine = {k: answers(fed, k, received) for k, received in models.items()}
        peers = dict(fed.each(mine))
        if self.server_epochs:
            slim = slimming(fed)
            with fed.clock("server"):  # each rank those of its own clients
                students = {k: self.teach(fed, state, peers, k, models[k], t) for k in models}

            def fetch(client: Client) -> None:
                mask = models[client.id].mask
                packed = fed.down(client, slim.pack(students[client.id], mask))
                client.load(slim.unpack(packed, mask))

            fed.run(sorted(peers), fetch)
        return state

    # The client

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Upload:
        """Train a client without labels; send its pruned model and its mask."""
        slim = slimming(fed)
        if ROUNDS not in client.memory:  # otherwise it has a model of its own
            client.load(fed.down(client, state.small))
        # a client's memory is on its device
        mask = client.memory.get(MASK, slim.all_channels()).cpu()
        rounds = client.memory.get(ROUNDS, 0)
        z = logits(fed, client, client.train)  # of the model before this training
        self.train_on(fed, client, state, t, Paired(client.train, z.argmax(1)), mask)
        if self.rate and rounds < self.prunings:
            mask = slim.prune(client.params(), mask, self.rate)
        if self.finetune_epochs:
            how: dict[str, Any] = {"epochs": self.finetune_epochs, "phase": "finetune"}
            self.train_on(fed, client, state, t, choose(client, z, self.threshold), mask, **how)
        else:
            slim.drop(client, mask)
        client.memory |= {MASK: mask, ROUNDS: rounds + 1}
        return slim.upload(client.params(), mask)

    def train_on(
        self,
        fed: Federation,
        client: Client,
        state: State,
        t: int,
        data: Shard,
        mask: Tensor,
        **how: Any,
    ) -> None:
        """Train a client on the labels of `data`; dropped channels are 0 after each step.

        how: as `LocalSteps` takes it.
        """
        remaining = slimming(fed).drop(client, mask)
        with LocalSteps(fed, client, t, data=data, **how) as steps:
            for x, y in steps:
                steps.learn(partial(self.loss, client, state), x, y)
                if remaining is not None:
                    client.skeleton.flat.mul_(remaining)

    # The server

    def begin(self, fed: Federation, state: State) -> tuple[Params, Params, Tensor]:
        """Return the server's state after its two models have learnt the labelled data."""
        learn = partial(fit_targets, fed, lr=self.server_lr, size=self.server_batch)
        large, small, server = state.large, state.small, fed.job.models.server
        if self.large_epochs:
            data = Paired(fed.public, torch.from_numpy(fed.public.labels))
            large = learn(server, large, data, F.cross_entropy, "large", epochs=self.large_epochs)
        z = outputs(fed, predictor(fed, server, large), fed.public)
        if self.small_epochs:
            data, kind = Paired(fed.public, z, with_labels=True), fed.architectures[0]

            def loss(ours: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
                return F.cross_entropy(ours, targets[0]) + self.imitation(ours, targets[1])

            small = learn(kind, small, data, loss, "small", epochs=self.small_epochs)
        return large, small, z

    def imitation(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """Return lam KL at temperature tau; logits [n, C]."""
        return self.lam * distil(soften(theirs, self.tau), ours, self.tau)

    def teach(
        self, fed: Federation, state: State, peers: Peers, k: int, received: Pruned, t: int
    ) -> Params:
        """Return client k's model after it has learnt the labelled data.

        peers: all models of the round, this one too.
        """
        module, targets = fed.module(fed.architectures[k]), self.consensus(peers, k)
        remaining = slimming(fed).remaining(received.model, received.mask)  # 1 or 0, by name
        is_trained = parameters(module)
        module.model.train()

        def loss(params: Params, rows: np.ndarray) -> Tensor:
            x, y = fed.public.batch(rows)
            at = torch.from_numpy(rows).to(fed.device)
            some = {n: v * remaining[n] for n, v in params.items() if is_trained(n)}
            z = forward(fed, module, Params({**params, **some}), fed.prepare(x))
            value = F.cross_entropy(z, y) + self.imitation(z, state.logits[at])
            return value if targets is None else value + self.lam * distil(targets[at], z, self.tau)

        return fit(
            fed,
            lay_out(module, received.model),
            loss,
            lambda rows: rows,
            len(fed.public),
            "taught",
            t,
            k,
            epochs=self.server_epochs,
            size=self.server_batch,
            lr=self.server_lr,
            trained=is_trained,
        )

    def consensus(self, peers: Peers, k: int) -> Tensor | None:
        """Return sum_l c_kl s_l over the peers l of client k, [N, C]; None if it has no peers."""
        weights = peer_weights({j: peer["mask"] for j, peer in peers.items()}, k)
        parts = [c * soften(peers[j]["logits"], self.tau) for j, c in weights.items()]
        return torch.stack(parts).sum(0) if parts else None


def slimming(fed: Federation) -> Slimming:
    """Return the channels of the clients' model that can be dropped; none with rate = 0.

    Raises ConfigError if they are not known.
    """
    if not fed.job.algorithm.rate:
        return Slimming(Units({}, {}), ())
    advice = "resnet18 for one, or set algorithm.rate = 0"
    units = find_units(fed, "prunes channels", advice)
    return Slimming.of(fed.module(fed.architectures[0]).model, units)


def answers(fed: Federation, k: int, received: Pruned) -> dict[str, Tensor]:
    """Return what a client's model does for its peers: its mask, and its logits, [N, C]."""
    answer = predictor(fed, fed.architectures[k], received.model)
    return {"mask": received.mask, "logits": outputs(fed, answer, fed.public)}


def uncertainty(z: Tensor) -> Tensor:
    """Return C / sum_c (relu(z_c) + 1) of each row, from 0 to 1; logits: [n, C]."""
    return z.shape[1] / (F.relu(z) + 1).sum(1)


def choose(client: Client, z: Tensor, threshold: float) -> Shard:
    """Return the client's examples of which its model is sure, with its predictions as labels.

    z: the model's logits, [n, C]. Returns all examples if it is sure of none.
    """
    sure = (uncertainty(z) < threshold).nonzero()[:, 0]
    if not len(sure):
        return Paired(client.train, z.argmax(1))
    return Paired(client.train.pick(sure.cpu().numpy()), z.argmax(1)[sure])
