"""Base classes of methods, which replace the hooks in which they differ from FedAvg.

The default hooks of `RoundBased`, the base class of synchronous methods, are FedAvg. A run calls
the hooks in this order:

    before the run      refuses     reasons to refuse the job or single fields of it
                        shared      which tensors are exchanged
                        traffic     bytes per client and round, measured
                        init        initial state of the server
    round               cohort      clients that take part
      server            round       the whole round, for more than one exchange
        client          local       one client's round, which returns what it sends
                          offer     part of the state that the client gets
                          receive   load it into the client's model
                          loss      local objective
        server          aggregate   what the server computes of all uploads
                          averaged  what of the state the mean is of
                        server      new state from that
      evaluation        predictor   function that predicts for a client
                        columns     additional numbers of the record
    after the last one  finish      final averaging or fine-tuning

`model` says what of the state is the model. The method `weight`, a client's weight in the mean,
follows from the field `weighting`; `train` trains a client on the objective `loss`. Beside
hooks, a method declares its properties: `guide`, `accepts`, `needs`, `reads_head`, `needs_classes`,
`views`, `step_passes`, `local_defaults`, `unused`, `keeps_stragglers`, `keeps_weights`,
`trains_once`, `uses_rounds`, `trains_parts`, `trains`, `alone`, `extra_epochs`, `steps_per_batch`,
`draws_widths`, `in_virtual_time`, `samples_cohorts`, `one_at_a_time`, `edges`, `variants`,
`proxy_variant`, `per`.
Each is a ClassVar, or a property if it depends on an option.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from hpcfed.config.conditions import Unused, check_conditions, unless
from hpcfed.config.job import Job
from hpcfed.config.sections import Section
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.params import Mean, Params
from hpcfed.federation.upload import Upload
from hpcfed.models.assign import draw_width
from hpcfed.training import evaluate, stacked
from hpcfed.training.local import sgd
from hpcfed.training.server import predictor

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation
    from hpcfed.models.widths import Units

State = (
    Any  # Params, or a frozen dataclass of them: passed in, returned, never kept in the algorithm
)


class Guide(NamedTuple):
    """What helps to choose a method, in a few words each: no option of a job, and no result here.

    data: the difference between clients that it is made for; "made for data that are ...".
    sent: what travels.
    won: where its paper saw it win; papers differ in data, tuning and rivals.
    """

    data: str = ""
    sent: str = ""
    won: str = ""


class Method(Section):
    """Base class of all methods; an instance is the frozen record of its hyper-parameters."""

    # Properties of a method. Those of type Any may be replaced by a property if they depend on an
    # option.

    # what helps to choose the method
    guide: ClassVar[Guide] = Guide()
    # str, which models clients may have: "one architecture", "widths" of one, "depths" of one
    # family, "a common head", "any models"
    accepts: ClassVar[Any] = "one architecture"
    # tuple of str, what the method needs: "public" data, a "proxy" model beside each client's own,
    # a "server" model
    needs: ClassVar[Any] = ()
    # bool, whether it reads the head of models, their last linear layer, or the representation that
    # this layer reads; models without such a layer are then refused
    reads_head: ClassVar[Any] = False
    # str, why it needs data whose examples have classes, as "it averages prototypes of classes";
    # "": it does not, because it uses labels in the default `loss` only
    needs_classes: ClassVar[Any] = ""
    # int, number of augmented copies of a batch that the loss gets
    views: ClassVar[Any] = 1
    # int, passes forward and backward through the model in one step of local training, each of
    # which takes virtual time
    step_passes: ClassVar[Any] = 1
    # dict, values of [local] for jobs that do not set them
    local_defaults: ClassVar[Any] = {}
    # dict, fields that have no effect with this method, with the reason, or with the condition
    # under which they have one: unless(...). Fields of [local] as "local.epochs", inherited ones as
    # "weighting". A subclass adds its own
    unused: ClassVar[Unused] = {}
    # bool, whether a client's round is one training, so that momentum does not matter if it has one
    # step
    trains_once: ClassVar[Any] = True
    # bool, whether the method works if only a part of each model is trained (models.train,
    # models.lora)
    trains_parts: ClassVar[Any] = True
    # tuple of str, name patterns of the tensors that are trained and sent, as in models.train, for
    # jobs that do not set it; none: all
    trains: ClassVar[Any] = ()
    # dict, fields of the job in which clients do the same local work without the others, by name
    # ("local.epochs"), for `hpcfed matched`: usually local training, because terms of the loss that
    # pull to received values have no counterpart; another algorithm.name drops the method's fields.
    # A method whose clients have a loss, models or examples of their own keeps its name
    alone: ClassVar[Any] = {"algorithm.name": "local"}
    # int, epochs over a client's own examples in each round beside local.epochs, as of its head
    extra_epochs: ClassVar[Any] = 0
    # int, number of a client's steps for each of the job's local steps
    steps_per_batch: ClassVar[Any] = 1
    # bool, whether each client's width is drawn anew from models.widths in each round
    draws_widths: ClassVar[Any] = False
    # whether clients work at their own pace in virtual time, without rounds
    in_virtual_time: ClassVar[bool] = False
    # whether `fed.sample` draws the cohorts, so that the job's selection has an effect
    samples_cohorts: ClassVar[bool] = False
    # bool, whether the clients of a round work one after the other, so that a round lasts as long
    # as all of them together
    one_at_a_time: ClassVar[bool] = False
    # str, what edge servers can do between the clients and the server: "sums", add up their
    # clients' uploads in each round; "models", also keep models of their own for several rounds;
    # "", nothing, because the server needs each client's upload, or there is no server
    edges: ClassVar[Any] = ""
    # tuple of str, suffixes of the clients' architectures, assigned in turn: changes that the
    # method makes to them (hpcfed.models.variants), such as "~pan_add_1_0.15"
    variants: ClassVar[Any] = ("",)
    # str, such a suffix of models.proxy, beside each client's own model
    proxy_variant: ClassVar[Any] = ""
    # whether partial work counts; otherwise stragglers are left out of the round
    keeps_stragglers: ClassVar[bool] = False
    # bool, whether a round depends on how many rounds the job has, so that a finished run is not
    # continued to more
    uses_rounds: ClassVar[Any] = False
    # whether clients keep weights of their own from round to round; None: if some tensors are not
    # `shared`
    keeps_weights: ClassVar[bool | None] = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Check the conditions of the fields as the class is defined."""
        check_conditions(cls, Job)

    @property
    def default_client_round(self) -> bool:
        """Whether clients use the round of RoundBased: receive, train on `loss`, send.

        It is derived from the hooks and never replaced.
        """
        return False

    def refuses(self, job: Job) -> dict[str, str]:
        """Return reasons to refuse the job, by subject, beside the conditions of fields.

        Methods add their reasons to those of `super()`.
        "job": why the method with these settings cannot run it, beyond `accepts` and `needs`. The
        text is "needs ..., but ...; what to set instead" and follows the method's name in the
        message.
        "local.momentum" and so on, a field of the job: why it has no effect, where no condition
        (`field`, `unused`) can say it. Only a job that sets such a field is refused.
        """
        local = job.local
        reasons: dict[str, str] = {}
        if self.trains_once and local.steps == 1 and not local.keep_optimiser:
            why = "each round is the first step of a new optimiser; set local.keep_optimiser = true"
            reasons |= {"local.momentum": why, "local.betas": why}
        if self.keeps_stragglers and (local.steps or local.epochs) == 1:
            why = "stragglers do at least one epoch or step, which is all of the work"
            reasons["local.stragglers"] = why
        return reasons

    def traffic(self, fed: Federation, k: int) -> tuple[int, int]:
        """Return the bytes that client k receives and sends in one round, beforehand.

        They are measured on a trial with a handful of examples. Only a method whose bytes follow
        from something that a trial cannot have, such as what is learnt, replaces the hook.
        """
        from hpcfed.algorithms.trial import measure  # which imports this module

        return measure(fed).traffic(k)

    def shared(self, name: str) -> bool:
        """Return whether the tensor of this name is exchanged; otherwise the client keeps it."""
        return True

    def init(self, fed: Federation) -> State:
        """Return the initial state of the server."""
        return fed.initial(self.shared)

    def model(self, state: State) -> Params:
        """Return what of the state is the model; the rest stays with the server."""
        return state

    def offer(self, fed: Federation, client: Client, state: State) -> State:
        """Return what the client receives of the state: the model, or the model of its cluster."""
        return self.model(state)

    def receive(self, client: Client, state: State) -> None:
        """Give the client's model the weights with which it starts a round."""
        client.load(state)

    def loss(self, client: Client, state: State, model: Any, x: Any, y: Any) -> Tensor:
        """Return the local objective on one batch, a scalar; by default that of the data's task.

        state: what the client was offered.
        model: the client's `Model`.
        """
        return client.task.loss(model(x), y)

    def predictor(self, fed: Federation, client: Client, state: State) -> Callable[[Any], Tensor]:
        """Return the function that evaluation measures, of prepared inputs.

        The function returns logits, or other outputs that the data's task scores, [n, C]. The hook
        is called once for each evaluation of a client. It may change the client's model first, by a
        training step for example: after the evaluation the weights are restored.
        """
        return client.model

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        """Return additional numbers of an evaluated round's record, by name; collective.

        The numbers must not depend on the number of ranks. By default, with evaluate.common and
        where all tensors are shared, this is `accuracy_common`, or that of another main metric, of
        what a client receives. A method whose server has no such model replaces the hook.
        """
        has_common = fed.job.evaluate.common and shares_all(self, fed)
        return {common_name(fed): score_common(self, fed, state)} if has_common else {}

    def finish(self, fed: Federation, state: State, t: int) -> State | None:
        """Do what follows the last round (a last mean, a fine-tuning) and return the new state.

        None: nothing follows.
        t: the last round.
        The new state and the clients' weights are evaluated and saved apart from the rounds and
        the checkpoints, so that a run can be extended. Clients that train here do so without noise,
        so that with `privacy` a method that sends something here is refused.
        """
        return None


class RoundBased(Method):
    """Base class of methods that work in synchronous rounds; its defaults are FedAvg."""

    # Per, what has a weight of its own in the mean of the uploads, as in `fed.mean`
    per: ClassVar[Any] = "mean"
    samples_cohorts: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the mean: its number of training examples, or 1."""

    @property
    def default_client_round(self) -> bool:
        """Whether `loss` and `offer` are the only hooks of the client's round that are replaced."""
        return is_plain(self, "receive", "local", "train", "round")

    @property
    def edges(self) -> str:
        """What edge servers can do, as it follows from the hooks.

        Where each round is one mean of the clients' uploads, they can add these up. Where this mean
        is also the new state, and each client has one weight in it, they can train models of their
        own for several rounds. A method with a round or an `aggregate` of its own that only takes
        means declares `edges = "sums"`.
        """
        weights = any(map(self.shared, ("body.", "head.", "proxy.")))  # otherwise none are sent
        if not (weights and is_plain(self, "round", "offer", "aggregate")):
            return ""
        same = is_plain(self, "server", "averaged") and self.per == "mean"
        return "models" if same else "sums"

    def cohort(self, fed: Federation, t: int) -> list[int]:
        """Return the clients of round t, in id order, the same on all ranks."""
        return fed.sample(t)

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        """Run one round with a cohort of at least one client and return the new state.

        Only methods with more than one exchange replace it.
        """
        uploads = [
            *fed.stream(
                cohort,
                partial(self.local, fed),
                arguments=(state, t),
                together=lambda clients: stacked.train(fed, self, clients, state, t),
            )
        ]
        fed.turns.meanwhile()  # no client's own model changes any more in this round
        return self.server(fed, state, self.aggregate(fed, state, uploads), cohort)

    def local(self, fed: Federation, client: Client, state: State, t: int) -> Any:
        """Run one client's round (download, train) and return what it sends: its part of the mean.

        None: it sends nothing.
        """
        download = fed.down(client, self.offer(fed, client, state))
        self.receive(client, download)
        self.train(fed, client, download, t)
        sent = client.params(self.shared)
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download) if sent else None

    def train(self, fed: Federation, client: Client, received: State, t: int, **how: Any) -> int:
        """Train the client's model on `loss`, and return the number of steps.

        received: what the client received.  how: as `LocalSteps` takes it.
        """
        defaults = {"views": self.views, "passes": self.step_passes}
        return sgd(fed, client, t, partial(self.loss, client, received), **defaults | how)

    def weight(self, client: Client) -> float:
        """Return the client's weight in the mean, according to `weighting`."""
        return float(client.n) if self.weighting == "samples" else 1.0

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> Any:
        """Return what the server computes of all uploads: by default their mean; collective.

        uploads: pairs of this rank's clients, (client id, `Mean`), or what else `local` sends: the
        only part, or a dict of the parts. It may be empty. Clients' models must not change.
        """
        return fed.mean(uploads, keep=self.averaged(fed, state), per=self.per)

    def averaged(self, fed: Federation, state: State) -> Any:
        """Return what of the state is averaged: by default the model.

        It gives the names and shapes of what is sent, and what stays where nobody has sent
        anything. It is Params, or for uploads of several parts a dict of Params by part.
        """
        return self.model(state)

    def server(self, fed: Federation, state: State, mean: Any, cohort: list[int]) -> State:
        """Return the new state from the old one and the mean of the uploads.

        mean: Params, or for uploads of several parts a dict of Params by part; with an `aggregate`
        of the method's own what that returns.
        """
        return mean


class Averaging(RoundBased):
    """Base class of methods whose clients can do their local work without the exchange too.

    Their loss has terms of the client's own, of which nothing is received.
    """

    alone: ClassVar[dict[str, Any]] = {"algorithm.averaging": False}
    unused: ClassVar[Unused] = {"weighting": unless("averaging")}

    averaging: bool = True
    """Exchange and average; if false, clients train alone on the same loss (hpcfed matched)."""

    @property
    def accepts(self) -> str:
        return "one architecture" if self.averaging else "any models"

    def shared(self, name: str) -> bool:
        return self.averaging


def is_plain(method: Method, *hooks: str) -> bool:
    """Return whether these hooks are those of RoundBased."""
    return all(getattr(type(method), n, None) is getattr(RoundBased, n, None) for n in hooks)


def shares_all(method: Method, fed: Federation) -> bool:
    """Return whether every tensor of a model is exchanged."""
    return all(map(method.shared, fed.shapes()))


def has_server_model(method: Method, fed: Federation) -> bool:
    """Return whether the server has one complete model, which every client would receive."""
    alike = len(set(fed.architectures)) == 1
    return alike and shares_all(method, fed) and is_plain(method, "columns")


def keeps_weights(method: Method, fed: Federation) -> bool:
    """Return whether clients keep weights of their own from round to round."""
    return not shares_all(method, fed) if method.keeps_weights is None else method.keeps_weights


def architecture(method: Method, fed: Federation, k: int, t: int) -> str:
    """Return the architecture of client k in round t."""
    full = fed.architectures[k]
    return draw_width(fed.job, full, k, t) if method.draws_widths else full


def common_name(fed: Federation) -> str:
    """Return the name of the column of the main metric on the whole test split."""
    return f"{fed.task.main}_common"


def score_common(
    method: Method,
    fed: Federation,
    state: State,
    architecture: str = "",
    test: Shard | None = None,
) -> float:
    """Return the main metric on the whole test split, of what a client would receive; collective.

    architecture: of this client; by default that of the server's model.
    test: this rank's part of other examples, to be scored instead.
    """
    pooled = fed.pooled()
    pooled.architecture = architecture or pooled.architecture
    method.receive(pooled, method.offer(fed, pooled, state))
    return evaluate.common(fed, method.predictor(fed, pooled, state), test)


def score_server(fed: Federation, architecture: str, params: Params) -> dict[str, float]:
    """Return the common score of a model of the server's own, if evaluate.common; collective."""
    if not fed.job.evaluate.common:
        return {}
    return {common_name(fed): evaluate.common(fed, predictor(fed, architecture, params))}


def find_units(fed: Federation, what: str, advice: str) -> Units:
    """Return the groups of units of the clients' one architecture.

    Raises ConfigError if they are not known.  what: the method does with them.  advice: another
    model or setting.
    """
    kind, name = fed.architectures[0], fed.job.algorithm.name
    try:
        return fed.store.units(kind)
    except ConfigError as why:
        raise ConfigError(
            f"{name} {what}, but which units of {kind} belong together is unknown\n  take "
            f"another model, {advice}"
        ) from why


def check_public_labels(fed: Federation, advice: str) -> None:
    """Raise DataError, with this advice, if a public label is not a class of the clients."""
    if fed.public and (label := fed.public.labels.max()) >= fed.classes:
        raise DataError(
            f"{fed.job.algorithm.name} learns the public labels, but one is {label}, and the "
            f"clients have {fed.classes} classes; {advice}"
        )


def warn_of_short_run(fed: Federation, field: str, never: str, begins: int | None = None) -> None:
    """Warn if the job ends before the round, counted from 0, that a field of its method names.

    never: what then does not happen.
    begins: that round, if it is not the field's value itself.
    """
    method, rounds = fed.job.algorithm, fed.job.rounds
    value = getattr(method, field)
    begins = value if begins is None else begins
    if begins >= rounds:
        fed.warnings.say(
            f"{method.name}: {never}, because algorithm.{field} = {value} and the job "
            f"has {rounds} rounds; it needs at least {begins + 1} rounds"
        )


# `unused` of methods whose loss of the labels is their own
OWN_LOSS = dict.fromkeys(
    ("local.class_weights", "local.focal"),
    "its local objective has a cross-entropy of its own, which knows neither weights nor focus",
)
# `unused` of methods whose batches are not drawn from the client's own examples alone
OWN_BATCHES = {"local.balanced_batches": "its batches are not only of the client's own examples"}
# `unused` of methods whose clients send one gradient each round
PLAIN_GRADIENT = dict.fromkeys(
    (
        f"local.{name}"
        for name in ("optimiser", "weight_decay", "epochs", "steps", "balanced_batches")
    ),
    "a client sends its plain gradient once per round",
)
