"""FedDF: FedAvg for each architecture; each mean model then learns from all clients' models.

Lin et al., NeurIPS 2020, arXiv:2006.07242, algorithms 1 and 3. An architecture without a client in
the cohort stays as it is.

Objective: F_k(w_k)
Server: w_a <- sum_(k in a) p_k w_k, then w_a <- argmin_w tau^2 KL(softmax(mean_k f_k(x) / tau) ||
    softmax(f_w(x) / tau))
Round:
1. The server sends each client the model of its architecture a.
2. Each client trains it and sends it.
3. The server takes the weighted mean of the models of each architecture, w_a.
4. From there this student learns, on public data, the plain mean of the logits of all uploads.

Deviations: the student with the least distillation loss on held-out public data is kept; the
authors look at the accuracy. The teacher is the mean of logits, as in the paper; the public code
averages the divergences from the single models. drop_worst needs labels there, as theirs does. A
dropped client counts neither as a teacher nor in the mean. Students' batch statistics end as those
of public data.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Job, Mean, Paired, Params, RoundBased
from hpcfed.algorithms.public_data.by_architecture import join_models, of_architecture, score_groups
from hpcfed.config.conditions import above, field
from hpcfed.training.infer import outputs
from hpcfed.training.losses import distil, soften
from hpcfed.training.server import fit_targets, predictor, split_holdout


class FedDF(RoundBased):
    """With steps = 0 FedDF is FedAvg in each architecture.

    With one architecture it is FedAvg, bit for bit.
    """

    guide = Guide(
        data="different labels; public data, labels not needed",
        sent="all weights of each architecture's clients",
        won="fewer rounds than FedAvg; several architectures",
    )

    needs_classes: ClassVar[str] = "it distils class probabilities"
    accepts: ClassVar[str] = "any models"
    needs: ClassVar[tuple[str, ...]] = ("public",)

    steps: NonNegativeInt = 10_000
    """Maximum number of distillation steps per architecture and round."""
    server_lr: PositiveFloat = field(1e-3, used_if="steps")
    """Learning rate of the distillation, by Adam."""
    schedule: Literal["cosine", "constant"] = field("cosine", used_if="steps")
    """Learning rate over the steps: cosine falls to 0 at the last."""
    server_batch: PositiveInt = field(128, used_if="steps")
    """Examples in one step of distillation."""
    clip: NonNegativeFloat = field(5.0, used_if="steps")
    """Maximum norm of a gradient; 0: no limit."""
    tau: PositiveFloat = field(1.0, used_if="steps")
    """Temperature of the distillation."""
    validation: Annotated[float, Field(ge=0, lt=1)] = field(0.1, used_if=("steps", "drop_worst"))
    """Share of the public data held out; 0: none, and then all steps are done."""
    patience: PositiveInt = field(1000, used_if={"steps": above(0), "validation": above(0)})
    """Steps without a better student on the held-out data after which the distillation ends."""
    drop_worst: NonNegativeFloat = 0.0
    """Leave out clients whose accuracy on held-out data is below this multiple of guessing
    (authors: 1.2); 0: none.
    """

    def refuses(self, job: Job) -> dict[str, str]:
        reasons = super().refuses(job)
        apart = 0 if job.data.public_source else int(self.validation * job.data.public)
        if self.drop_worst and not apart:
            reasons["job"] = (
                "needs held-out public data with the clients' labels to leave clients out, but "
                "has none; set algorithm.drop_worst = 0"
            )
        return reasons

    def init(self, fed: Federation) -> Params:
        firsts = {kind: fed.architectures.index(kind) for kind in fed.architectures}
        return join_models({kind: fed.initial(k=k) for kind, k in firsts.items()})

    def offer(self, fed: Federation, client: Client, state: Params) -> Params:
        return state.under(f"{client.architecture}/")

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        more = score_groups(fed, state) if fed.job.evaluate.common else {}
        return super().columns(fed, state) | more

    def aggregate(self, fed: Federation, state: Params, uploads: list[tuple[int, Mean]]) -> Any:
        """Return the means of the models, by architecture, and the teacher's logits, [N, C]."""
        models, answers = {}, {}
        for k, sent in uploads:
            z, good = answer_public(fed, k, sent.terms[0].value, self.validation, self.drop_worst)
            models[k] = of_architecture(fed, k, sent, good)
            answers[k] = Mean.of(Params(logits=z), good)
        nobody = torch.full((len(fed.public), fed.classes), torch.nan, device=fed.device)
        teacher = fed.mean(answers.items(), keep=Params(logits=nobody))["logits"]
        return fed.mean(models.items(), keep=state, per="tensor"), teacher

    def server(self, fed: Federation, state: Params, mean: Any, cohort: list[int]) -> Params:
        new, teacher = mean
        if not self.steps or teacher.isnan().any():
            return new
        return fed.on_root(lambda: self.teach(fed, new, cohort, teacher))

    def teach(
        self, fed: Federation, state: Params, cohort: Iterable[int], teacher: Tensor
    ) -> Params:
        """Train a student of each of the cohort's architectures; return the new state.

        A student starts from its architecture's model in the state and learns the teacher's logits,
        [N, C].
        """
        data, new = Paired(fed.public, soften(teacher, self.tau)), {}
        for kind in sorted({fed.architectures[k] for k in cohort}):
            new[kind] = fit_targets(
                fed,
                kind,
                state.under(f"{kind}/"),
                data,
                lambda logits, target: distil(target, logits, self.tau),
                "students",
                kind,
                fed.t,
                steps=self.steps,
                size=self.server_batch,
                lr=self.server_lr,
                optimiser="adam",
                schedule=self.schedule,
                clip=self.clip,
                holdout=self.validation,
                patience=self.patience,
            )
        return Params({**state, **join_models(new)})


def answer_public(
    fed: Federation, k: int, model: Params, holdout: float, least: float
) -> tuple[Tensor, float]:
    """Return the logits of all public data of the model that client k has sent, and its weight.

    The logits are [N, C]; the weight is 0 or 1.
    holdout: share of the public data held out.
    least: a client gets weight 0 if its accuracy on the held-out data is below `least` times that
    of guessing, 1 / C.
    """
    z = outputs(fed, predictor(fed, fed.architectures[k], model), fed.public)
    _, apart = split_holdout(fed, len(fed.public), holdout)
    correct = (
        z[torch.from_numpy(apart).to(z.device)].argmax(1).cpu().numpy() == fed.public.labels[apart]
    )
    good = float(not least or correct.mean() >= least / fed.classes)
    return z, good
