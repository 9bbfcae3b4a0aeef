"""A method as a few hooks; those of RoundBased, a synchronous method, are together FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from hpcfed.config.parts import Part, Share  # noqa: F401, methods take Share from here
from hpcfed.core.params import Mean, Params
from hpcfed.training import stacked
from hpcfed.training.local import sgd
from hpcfed.training.losses import objective

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation
    from hpcfed.models.model import Model

State = (
    Any  # Params, or a frozen dataclass of them: passed in, returned, never kept in the algorithm
)


class Method(Part):
    """What every method says of itself; an instance is its own frozen record of
    hyper-parameters.
    """

    # which models clients may have: "one architecture", "widths" of one, "a common head", "any
    # models"
    accepts: ClassVar[str] = "one architecture"
    # what it cannot do without: "public" data, a "proxy" model beside each client's own, a "server"
    # model
    needs: ClassVar[tuple[str, ...]] = ()
    # whether it can be trained on survival times: all that it makes of labels is the default `loss`
    survival: ClassVar[bool] = False
    # augmented copies of a batch that the loss gets
    views: ClassVar[int] = 1
    # whether partial work counts; else stragglers are left out of the round
    keeps_stragglers: ClassVar[bool] = False
    # values of [local] that a job has which does not set them
    local_defaults: ClassVar[dict[str, Any]] = {}
    # whether clients do what stands in RoundBased: receive, train down `loss`, send
    default_client_round: ClassVar[bool] = False
    # what a field meant before it was there, where that is not its default: so old runs go on as
    # they began
    formerly: ClassVar[dict[str, Any]] = {}

    def refuses(self, job: Job) -> str | None:
        """Why this method, so set, cannot run the job, beyond `accepts` and `needs`; None: it can.

        "needs ..., but ...; what to set instead": the first words follow the method's name.
        """
        return None

    def without_effect(self, job: Job) -> dict[str, str]:
        """Fields of [local] and of the method that change nothing in this job, and why.

        A job that sets one of them is refused. Methods add theirs to what holds for all of them.
        """
        local, found = job.local, {}
        if local.optimiser == "adam":
            found["local.momentum"] = "local.optimiser = 'adam' has moments of its own"
        else:
            found["local.betas"] = "they are Adam's, and local.optimiser = 'sgd'"
            if not local.momentum:
                found["local.keep_optimiser"] = "SGD without momentum has nothing to keep"
        if local.steps is not None:
            found["local.epochs"] = "local.steps stands instead of them"
        if local.schedule != "step":
            why = f"local.schedule = {local.schedule!r} has no milestones"
            found |= {"local.milestones": why, "local.decay": why}
        elif not local.milestones:
            why = "without local.milestones the learning rate never falls"
            found |= {"local.schedule": why, "local.decay": why}
        if self.keeps_stragglers and (local.steps or local.epochs) == 1:
            why = "a part of a single epoch or step is all of it"
            found["local.stragglers"] = why
        return found

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Bytes that client k receives and sends in one round, before anything is run."""
        bytes_ = fed.shapes(self.shared, k).nbytes
        return bytes_, bytes_

    def architecture(self, fed: Federation, k: int, t: int) -> str:
        """The architecture of client k in round t; another one than the job's only where clients
        keep nothing.
        """
        return fed.architectures[k]

    def init(self, fed: Federation) -> State:
        """What the server starts with."""
        return fed.initial(self.shared)

    def shared(self, name: str) -> bool:
        """Whether the tensor of this name is exchanged; else it stays with its client."""
        return True

    def whole(self, fed: Federation) -> bool:
        """Whether the server has a whole model, which a client would receive entire."""
        return all(map(self.shared, fed.shapes()))

    def levels(self, fed: Federation) -> Sequence[str]:
        """Architectures of the whole model's sub-models, each of which is evaluated as it is."""
        return ()

    def keeps(self, fed: Federation) -> bool:
        """Whether clients keep weights of their own from round to round; else they hold none
        between rounds.
        """
        return not self.whole(fed)

    def offer(self, fed: Federation, client: Client, state: State) -> State:
        """What of the state the client receives: all of it, or the model of its cluster, say."""
        return state

    def receive(self, client: Client, state: State) -> None:
        """Make the client's model the one that it has at the start of a round."""
        client.load(state)

    def loss(self, client: Client, state: State, model: Model, x: Any, y: Tensor) -> Tensor:
        """The local objective on one batch, a scalar."""
        return objective(model(x), y)

    def adapted(
        self, fed: Federation, client: Client, state: State, t: int
    ) -> AbstractContextManager:
        """Inside, the client's model is as it is evaluated, after a step of its own, say;
        afterwards as before.
        """
        return nullcontext()

    def predict(self, fed: Federation, client: Client, state: State, x: Any) -> Tensor:
        """Logits [n, C], or other scores of the classes, of prepared inputs: what evaluation
        measures.
        """
        return client.model(x)

    def common(self, fed: Federation, client: Client, state: State) -> bool:
        """Give the pooled client the one model that the whole test split is for; False: there is
        none. Collective.
        """
        if self.whole(fed):
            self.receive(client, self.offer(fed, client, state))
        return self.whole(fed)

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        """Further numbers of an evaluated round's record, by name; collective, the same for any
        ranks.
        """
        return {}

    def finish(self, fed: Federation, state: State, t: int) -> State | None:
        """What follows the last round (a last mean, a fine-tuning), and the state then; None:
        nothing.

        t: the last round.  What comes of it is evaluated apart and is in no checkpoint, so that a
        run can be extended.
        """
        return None


class RoundBased(Method):
    """A method that works in synchronous rounds."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the mean: its number of training examples, or 1."""

    def cohort(self, fed: Federation, t: int) -> list[int]:
        """The clients of round t, in id order, the same on all ranks."""
        return fed.sample(t)

    def without_effect(self, job: Job) -> dict[str, str]:
        """As for all methods; and of an optimiser that takes one step and is forgotten, its
        moments.
        """
        return super().without_effect(job) | (single_step(job) if self.default_client_round else {})

    def weight(self, client: Client) -> float:
        """The client's weight in the mean."""
        return float(client.n) if self.weighting == "samples" else 1.0

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Mean:
        """One client's round: download, train, upload. A method that replaces `round` may return
        what its own `round` takes.
        """
        given = self.offer(fed, client, state)
        self.receive(client, fed.down(client, given))
        sgd(fed, client, t, partial(self.loss, client, given), views=self.views)
        return Mean.of(client.params(self.shared), self.weight(client))

    @property
    def default_client_round(self) -> bool:  # type: ignore[override]
        """Whether no hook of what clients do was replaced but `loss`, `offer` and `weight`."""
        hooks = ("receive", "local", "round")
        return all(getattr(type(self), hook) is getattr(RoundBased, hook) for hook in hooks)

    def server(self, state: State, mean: Params) -> State:
        """The new state from the old one and the mean of the uploads."""
        return mean

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        """One round with a cohort of at least one; replaced only by methods with more than one
        exchange.
        """
        uploads = fed.stream(
            cohort,
            partial(self.local, fed),
            given=(state, t),
            together=lambda clients: stacked.train(fed, self, clients, state, t),
        )
        return self.server(state, fed.mean(uploads, keep=state, last=True))


def single_step(job: Job) -> dict[str, str]:
    """What has no effect where each round is a single step of a new optimiser, by field, and
    why.
    """
    if job.local.steps != 1 or job.local.keep_optimiser:
        return {}
    why = "each round is the first step of a new optimiser; set local.keep_optimiser = true"
    return {"local.momentum": why, "local.betas": why}


def one_gradient(job: Job) -> dict[str, str]:
    """What has no effect where clients send one gradient instead of training, by field, and why."""
    names = ("optimiser", "momentum", "weight_decay", "keep_optimiser", "epochs", "steps")
    return {f"local.{name}": "a client sends its plain gradient, once a round" for name in names}
