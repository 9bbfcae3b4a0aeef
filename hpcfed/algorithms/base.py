"""A method as a few hooks; those of RoundBased, a synchronous method, are together FedAvg.

A run calls the hooks in this order. A method replaces those in which it differs from FedAvg; all
else stays as it is.

    before the run      refuses     why the job is refused: as a whole, or fields that do nothing
                        shared      which tensors are exchanged
                        traffic     bytes of a client in a round
                        init        what the server starts with
    round               cohort      who takes part
      server            round       the whole round, for more than one exchange
        client          local       one client's round
                          offer     what of the state it gets
                          receive   what it makes of that
                          loss      its objective
        server          server      the new state from the mean of the uploads
      evaluation        predictor   with what a client predicts
                        columns     further numbers of the record
    after the last one  finish      a last mean, a fine-tuning

`weight`, a client's in the mean, follows from the field `weighting`. Beside hooks a method declares
what it is: `accepts`, `needs`, `views`, `local_defaults`, `keeps_stragglers`, `keeps_weights`,
`trains_parts`, `trains`, `draws_widths`, `samples_cohorts`, `gathers_uploads`, `edges`, `variants`,
`formerly`, as a ClassVar or, where it hangs on an option, a property.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from hpcfed.config.parts import Part, Share  # noqa: F401, methods take Share from here
from hpcfed.core.params import Mean, Params
from hpcfed.models.assign import draw_width
from hpcfed.training import evaluate, stacked
from hpcfed.training.local import sgd
from hpcfed.training.losses import objective

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation

State = (
    Any  # Params, or a frozen dataclass of them: passed in, returned, never kept in the algorithm
)


class Method(Part):
    """What every method says of itself; an instance is its own frozen record of
    hyper-parameters.
    """

    # What a method is. Where it hangs on an option a property stands in its place, hence Any.

    # str, which models clients may have: "one architecture", "widths" of one, "depths" of one
    # family, "a common head", "any models"
    accepts: ClassVar[Any] = "one architecture"
    # tuple of str, what it cannot do without: "public" data, a "proxy" model beside each client's
    # own, a "server" model
    needs: ClassVar[Any] = ()
    # bool, whether it can be trained on survival times: all that it makes of labels is the default
    # `loss`
    survival: ClassVar[bool] = False
    # int, augmented copies of a batch that the loss gets
    views: ClassVar[Any] = 1
    # dict, values of [local] that a job has which does not set them
    local_defaults: ClassVar[Any] = {}
    # bool, whether it can do with a part of each model that is trained (models.train, models.lora)
    trains_parts: ClassVar[Any] = True
    # tuple of str, patterns of the names of what is trained and sent, as models.train has them,
    # where the job names nothing; none: all
    trains: ClassVar[Any] = ()
    # bool, whether clients have another one of models.widths in each round, drawn anew
    draws_widths: ClassVar[Any] = False
    # bool, whether each upload travels between ranks as it is; else they are added up on the way,
    # as by fed.mean
    gathers_uploads: ClassVar[bool] = False
    # str, what edge servers can do between the clients and the server: "sums", add up in each round
    # what their clients send; "models", also have a model of their own for several rounds; "",
    # nothing, for the server needs each client's upload, or there is none
    edges: ClassVar[Any] = ""
    # tuple of str, what clients' architectures have beside their names, in turn: the method's own
    # change of them (hpcfed.models.variants), as "~pan_add_1_0.15"
    variants: ClassVar[Any] = ("",)
    # whether partial work counts; else stragglers are left out of the round
    keeps_stragglers: ClassVar[bool] = False
    # whether clients keep weights of their own from round to round; None: where `shared` leaves
    # them some
    keeps_weights: ClassVar[bool | None] = None
    # what a field meant before it was there, where that is not its default: so old runs go on as
    # they began
    formerly: ClassVar[dict[str, Any]] = {}

    @property
    def default_client_round(self) -> bool:
        """Whether clients do what stands in RoundBased: receive, train down `loss`, send. Derived,
        never replaced.
        """
        return False

    def refuses(self, job: Job) -> dict[str, str]:
        """Why the job is refused, by what is wrong with it; methods add theirs to `super()`'s.

        "job": why this method, so set, cannot run it, beyond `accepts` and `needs`; "needs ...,
        but ...; what to set instead", whose first words follow the method's name.
        "local.momentum" and so on, a field of [local] or of the method: why it changes nothing
        here. Only a job that sets such a field is refused.
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

    def shared(self, name: str) -> bool:
        """Whether the tensor of this name is exchanged; else it stays with its client."""
        return True

    def init(self, fed: Federation) -> State:
        """What the server starts with."""
        return fed.initial(self.shared)

    def offer(self, fed: Federation, client: Client, state: State) -> State:
        """What of the state the client receives: all of it, or the model of its cluster, say."""
        return state

    def receive(self, client: Client, state: State) -> None:
        """Make the client's model the one that it has at the start of a round."""
        client.load(state)

    def loss(self, client: Client, state: State, model: Any, x: Any, y: Any) -> Tensor:
        """The local objective on one batch, a scalar.

        state: what the client was offered.  model: the client's `Model`.
        """
        return objective(model(x), y)

    def predictor(self, fed: Federation, client: Client, state: State) -> Callable[[Any], Tensor]:
        """What evaluation measures: a function of prepared inputs that gives logits [n, C], or
        other scores of the classes.

        It is asked for once for each evaluation of a client, and may change the client's model
        before, by a step of its own, say: after the evaluation weights are as they were.
        """
        return client.model

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        """Further numbers of an evaluated round's record, by name; collective, the same for any
        ranks.

        The default: with evaluate.common and where all is shared, `accuracy_common` of what a
        client receives. A method whose server has no such model replaces it.
        """
        whole = fed.job.evaluate.common and shares_all(self, fed)
        return {"accuracy_common": score_common(self, fed, state)} if whole else {}

    def finish(self, fed: Federation, state: State, t: int) -> State | None:
        """What follows the last round (a last mean, a fine-tuning), and the state then; None:
        nothing.

        t: the last round.  What comes of it is evaluated apart and is in no checkpoint, so that a
        run can be extended.
        """
        return None


class RoundBased(Method):
    """A method that works in synchronous rounds."""

    # whether cohorts are drawn by `fed.sample`, so that the job's selection has an effect
    samples_cohorts: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the mean: its number of training examples, or 1."""

    @property
    def default_client_round(self) -> bool:
        """Whether no hook of what clients do was replaced but `loss` and `offer`."""
        hooks = ("receive", "local", "round")
        return all(getattr(type(self), hook) is getattr(RoundBased, hook) for hook in hooks)

    @property
    def edges(self) -> str:
        """What edge servers can do, by the hooks: where each round is one mean of what clients
        send, add that up; where the mean is the new state, also go on from their own. A method
        with a round of its own, of means alone, says `edges = "sums"`.
        """
        own = type(self)
        if own.round is not RoundBased.round or own.offer is not RoundBased.offer:
            return ""
        return "models" if own.server is RoundBased.server else "sums"

    def refuses(self, job: Job) -> dict[str, str]:
        """As for all methods; and of an optimiser that takes one step and is forgotten, its
        moments.
        """
        return super().refuses(job) | (single_step(job) if self.default_client_round else {})

    def cohort(self, fed: Federation, t: int) -> list[int]:
        """The clients of round t, in id order, the same on all ranks."""
        return fed.sample(t)

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

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Any:
        """One client's round: download, train, upload; returns its part of the mean, a `Mean`. A
        method that replaces `round` may return what its own `round` takes.
        """
        given = self.offer(fed, client, state)
        self.receive(client, fed.down(client, given))
        sgd(fed, client, t, partial(self.loss, client, given), views=self.views)
        return Mean.of(client.params(self.shared), self.weight(client))

    def weight(self, client: Client) -> float:
        """The client's weight in the mean, as `weighting` has it."""
        return float(client.n) if self.weighting == "samples" else 1.0

    def server(self, state: State, mean: Params) -> State:
        """The new state from the old one and the mean of the uploads."""
        return mean


def shares_all(method: Method, fed: Federation) -> bool:
    """Whether every tensor of a model is exchanged."""
    return all(map(method.shared, fed.shapes()))


def keeps_weights(method: Method, fed: Federation) -> bool:
    """Whether clients keep weights of their own from round to round; else they hold none between
    rounds.
    """
    return not shares_all(method, fed) if method.keeps_weights is None else method.keeps_weights


def architecture(method: Method, fed: Federation, k: int, t: int) -> str:
    """The architecture of client k in round t."""
    own = fed.architectures[k]
    return draw_width(fed.job, own, k, t) if method.draws_widths else own


def score_common(method: Method, fed: Federation, state: State, architecture: str = "") -> float:
    """Accuracy on the whole test split of what a client would receive now; collective.

    architecture: which one the client has; by default the one of the server's model.
    """
    pooled = fed.pooled()
    pooled.architecture = architecture or pooled.architecture
    method.receive(pooled, method.offer(fed, pooled, state))
    return evaluate.common(fed, method.predictor(fed, pooled, state))


def score_server(fed: Federation, architecture: str, params: Params) -> dict[str, float]:
    """With evaluate.common, `accuracy_common` of a model of the server's own; collective."""
    if not fed.job.evaluate.common:
        return {}
    pooled = fed.pooled()
    pooled.architecture = architecture
    pooled.load(params)
    return {"accuracy_common": evaluate.common(fed, pooled.model)}


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
