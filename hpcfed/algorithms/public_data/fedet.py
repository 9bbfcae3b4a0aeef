"""Fed-ET: small models of several architectures teach a large model on the server.

Cho et al. (Heterogeneous Ensemble Knowledge Transfer for Training Large Models in Federated
Learning), IJCAI 2022, arXiv:2204.12703.

The logits f_k(x) of client k's model have the weight a_k(x) = Var f_k(x) / sum_l Var f_l(x), with
variances over classes, because a confident model's logits vary more. q(x) is the softmax of their
sum over the models that disagree with the label y(x) (their a_k scaled to sum 1). An example on
which all agree has no such term.

Objective: F_k(w_k)
Server: w_a <- sum_(k in a) p_k w_k; y(x) = argmax sum_k a_k(x) f_k(x); w_s <- argmin_w CE(f_w(x),
    y(x)) + lam KL(q(x) || softmax f_w(x))
Round:
1. Each client receives the model of its architecture a, trains it and sends it.
2. The server averages within each architecture; w_s gets the mean of all uploaded heads.
3. It weights the logits of all uploaded models on public examples x by a_k(x).
4. From there w_s learns the label y of the sum, and the prediction q of those that disagree.
5. The head of w_s is copied into the small models.

Deviations: the authors have published no code. The steps are the paper's; the formulas of a_k and q
and lam = 0.05 rest on descriptions of it; optimiser and length of the server's training are our
choice. In the paper the copied layer is a representation layer that all models have. Here these are
all tensors that `transfer` names and that have one shape in both models: by default the head, the
one layer that all models of hpcfed have in common. Their mean has the weights of FedAvg.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, ConfigError, Federation, Guide, Mean, Paired, Params, RoundBased
from hpcfed.algorithms.base import score_server
from hpcfed.algorithms.public_data.by_architecture import join_models, of_architecture, score_groups
from hpcfed.config.conditions import field
from hpcfed.training.infer import outputs
from hpcfed.training.losses import distil
from hpcfed.training.server import fit_targets, predictor


@dataclass(frozen=True)
class State:
    """The server's models.

    server: the large model.  models: the small ones, "ARCHITECTURE/name".
    """

    server: Params
    models: Params


class FedET(RoundBased):
    """With server_epochs = 0 Fed-ET is FedAvg in each architecture.

    With one architecture it is FedAvg, bit for bit.
    """

    guide = Guide(
        data="different labels; public data",
        sent="all weights of small models",
        won="a large server model of small clients' models, images and text",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    reads_head: ClassVar[bool] = True
    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("public", "server")

    lam: NonNegativeFloat = field(0.05, used_if="server_epochs")
    """Weight of the KL to the predictions of models that disagree with the consensus."""
    server_epochs: NonNegativeInt = 5
    """Epochs of the server over the public data in each round."""
    server_lr: PositiveFloat = field(1e-3, used_if="server_epochs")
    """Learning rate of the server, by Adam."""
    server_batch: PositiveInt = field(128, used_if="server_epochs")
    """Examples in one step of the server."""
    transfer: tuple[str, ...] = field(("head.",), used_if="server_epochs")
    """Prefixes of the names of the tensors that pass from the small models to the server, as their
    mean, and back, if name and shape agree; none: no tensors.
    """

    def init(self, fed: Federation) -> State:
        large = fed.initial(architecture=fed.job.models.server)
        for beginning in self.transfer:
            if not any(name.startswith(beginning) for name in large):
                raise ConfigError(
                    f"fedet: algorithm.transfer has {beginning!r}, but no tensor of "
                    f"{fed.job.models.server} begins; it has {', '.join(large)}"
                )
        firsts = {kind: fed.architectures.index(kind) for kind in fed.architectures}
        small = join_models({kind: fed.initial(k=k) for kind, k in firsts.items()})
        return State(large, small)

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        return state.models.under(f"{client.architecture}/")

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        numbers = score_server(fed, fed.job.models.server, state.server)
        return numbers | (score_groups(fed, state.models) if numbers else {})

    def targets(self, fed: Federation, answers: Mapping[int, Tensor]) -> Tensor:
        """Return the student's targets for each public example, [N, 2, C].

        They are the consensus as one label, and q, which is 0 where all models agree.
        answers: logits [N, C] of this rank's clients. Collective.
        """
        like = torch.zeros(len(fed.public), fed.classes, device=fed.device)

        def weighted(weights: Mapping[int, Tensor], keep: Tensor) -> Tensor:
            parts = (
                (k, Mean.of(Params(z=z), Params(z=weights[k][:, None]))) for k, z in answers.items()
            )
            return fed.mean(parts, keep=Params(z=keep), per="row")["z"]

        spread = {k: z.var(1, correction=0) for k, z in answers.items()}
        label = weighted(spread, like).argmax(1)  # any label if all logits are equal
        other = {k: v * (answers[k].argmax(1) != label) for k, v in spread.items()}
        diverse = weighted(other, like + torch.nan)
        q = torch.where(diverse.isnan(), 0.0, F.softmax(diverse, dim=1))
        return torch.stack([F.one_hot(label, fed.classes).float(), q], 1)

    def student_loss(self, z: Tensor, target: Tensor) -> Tensor:
        """Return the server's loss on one batch.

        z: [n, C].  target: [n, 2, C], as returned by `targets`.
        """
        value = F.cross_entropy(z, target[:, 0])
        return value + self.lam * distil(target[:, 1], z) if self.lam else value

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Mean]]) -> State:
        parts, answers = {}, {}
        for k, sent in uploads:
            parts[k] = of_architecture(fed, k, sent)
            if self.server_epochs:
                answer = predictor(fed, fed.architectures[k], sent.terms[0].value)
                answers[k] = outputs(fed, answer, fed.public)
        models = fed.mean(parts.items(), keep=state.models, per="tensor")
        if not self.server_epochs:
            return State(state.server, models)
        start = self.take_layers(fed, state.server, uploads)
        data = Paired(fed.public, self.targets(fed, answers))
        server = fed.on_root(
            lambda: fit_targets(
                fed,
                fed.job.models.server,
                start,
                data,
                self.student_loss,
                "student",
                fed.t,
                optimiser="adam",
                epochs=self.server_epochs,
                size=self.server_batch,
                lr=self.server_lr,
            )
        )
        return State(server, self.carry_over(server, models))

    def layers(self, server: Params) -> Params:
        """Return the server's tensors that `transfer` names."""
        return server.pick(lambda name: name.startswith(self.transfer))

    def take_layers(
        self, fed: Federation, server: Params, uploads: list[tuple[int, Mean]]
    ) -> Params:
        """Return the server's model with the mean of the layers that `transfer` names; collective.

        The mean is taken over the uploaded models that have a tensor of the same name and shape. If
        there is none, the server's tensor stays.
        """
        layers = self.layers(server)

        def part(sent: Mean) -> Mean:
            (term,) = sent.terms
            same = {
                name: value
                for name, value in term.value.items()
                if name in layers and value.shape == layers[name].shape
            }
            return Mean.of(Params(same), term.weight)

        parts = [(k, part(sent)) for k, sent in uploads]
        return Params({**server, **fed.mean(parts, keep=layers, per="tensor")})

    def carry_over(self, server: Params, models: Params) -> Params:
        """Return the small models with the server's layers that `transfer` names.

        Only tensors of the same name and shape are copied.
        """
        layers = self.layers(server)

        def new(name: str, value: Tensor) -> Tensor:
            layer = layers.get(name.partition("/")[2])
            return value if layer is None or layer.shape != value.shape else layer

        return Params({name: new(name, value) for name, value in models.items()})
