"""Models of a run from a checkpoint: each client's model, as it was evaluated.

If clients keep models of their own, it is that one after its local training. If they keep none
(FedAvg), it is the one that the client would receive next: the global model, the best of several,
or its piece of a larger one. Its locally trained model of the last round is not stored; only its
score is known. After a method's final step it is the model with which that step was scored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hpcfed.algorithms.base import Method, architecture, has_server_model, keeps_weights
from hpcfed.clients.client import Clients
from hpcfed.clients.store import ClientStore
from hpcfed.comm import Serial
from hpcfed.config.job import Job
from hpcfed.config.load import again, models_of
from hpcfed.core.encoder import parse
from hpcfed.core.errors import CheckpointError, ConfigError, DamagedError
from hpcfed.core.params import Params
from hpcfed.core.payload import from_tree, on_device
from hpcfed.core.safe_read import convert_unfit_errors
from hpcfed.core.shapes import Shapes, read_numbers, read_shape
from hpcfed.federation.federation import Federation, SharedData
from hpcfed.federation.placement import ROUND
from hpcfed.models.assign import assign
from hpcfed.models.finetuning import Finetuning
from hpcfed.models.own_code import check_trained, own_names
from hpcfed.models.trained import GLOBAL, About, Trained, assemble_model, moment
from hpcfed.results.columns import client_names, main_metric
from hpcfed.results.trained.scoring import OF_NOW, Pieces, pieces
from hpcfed.results.trained.sources import CPU, Owner, Sources
from hpcfed.storage import checkpoint, names, record
from hpcfed.storage.checkpoint import Reader
from hpcfed.storage.results import FINAL
from hpcfed.tasks import from_facts

T = TypeVar("T")
NOBODY = -1  # the rank of clients that were not asked for


class Saved:
    """The models of a run in one checkpoint, or after the method's final step.

    clients: those that will be asked for; None for all.
    allowed: method and models outside hpcfed that may be imported.
    change: changes the job as it is stored.
    own_changed: whether their code may differ from that of the run.
    """

    def __init__(
        self,
        run: Path,
        source: Reader,
        clients: Collection[int] | None = None,
        allowed: Collection[str] = (),
        change: Callable[[Mapping[str, Any]], dict[str, Any]] = dict,
        own_changed: bool = False,
    ):
        results = record.recover(run)
        record.same_run(results.header, source.header, source.path)
        self.source, self.t = source, source.rounds - 1
        self.job = again(change(results.header["job"]), str(run), allowed)
        code_names = own_names(self.job.algorithm.name, models_of(self.job))
        code = check_trained(results.header.get("own", {}), code_names, str(run), own_changed)
        self.clients = select_clients(clients, self.job.clients)
        self.names = client_names(results)
        self.main_metric = main_metric(results)
        self.sources = Sources(self.job, run, results.header.get(record.RUN_ID, ""))
        self.about = inputs(results.header, self.job) | {
            "job": self.job.plain(),
            "rounds": source.rounds,
            "before_final": not source.final and has_final_step(self.job, results),
            "after_final": source.final,
            "own": code,
        }
        self.fed = federation(self.job, self.about, results, self.sources, self.clients)
        if self.fed.store.finetuning.some:  # what is frozen comes from these files
            self.fed.store.finetuning.same_weights(source.header.get(record.WEIGHTS))
        self.method = self.job.algorithm
        self.keeps = keeps_weights(self.method, self.fed)
        self.fed.store.stateless = not self.keeps
        # a round was stopped, and some of these clients have trained in it, perhaps not all
        self.in_round = self.keeps and any(source.has(f"clients/{k}", ROUND) for k in self.clients)
        self.fed.participants.open(self.t)
        with convert_unfit_errors(source.path):
            self.state = self.state_of(source.get("state"))
            edges = (
                source.get("time").get("edges", {}).get("states", {})
                if self.job.edges.number
                else {}
            )
            self.edges = {int(e): self.state_of(tree) for e, tree in edges.items()}
            self.edge_of = results.arrays.get("edges") if edges else None

    def state_of(self, tree: Any) -> Any:
        """Return the server's state.

        If it is not a Params, it is converted to the type of the method's initial state.
        """
        return (
            on_device(tree, CPU)
            if isinstance(tree, Params)
            else from_tree(self.method.init(self.fed), tree, CPU)
        )

    @property
    def moment(self) -> str:
        """When the models are from, in words."""
        return moment(*(self.about[name] for name in ("rounds", "before_final", "after_final")))

    def models(self) -> Iterator[Trained]:
        """Return the clients' models, one after the other."""
        return map(self.model, self.clients)

    @property
    def has_common(self) -> bool:
        """Whether the server has one complete model, which every client would receive."""
        return has_server_model(self.method, self.fed)

    def common(self) -> Trained:
        """Return the global model. Raises ConfigError if the method has none."""
        if not self.has_common:
            raise ConfigError(
                f"{self.source.path}: {self.method.name} has no global model that clients share; "
                f"take one client's (client) or the ensemble of all"
            )
        fed = self.fed
        client = Owner(self.job.clients, fed.architectures[0], self.sources, fed.store)
        with convert_unfit_errors(self.source.path):
            self.method.receive(client, self.method.offer(fed, client, self.state))
            client.model.eval()
            with client.borrowed():
                parts = pieces(fed, client, self.method, self.state)
        counted = f"rounds/{self.main_metric}_common"
        if self.source.final:
            counted = f"{FINAL}/{self.main_metric}_received"
        return self.assemble(parts, GLOBAL, counted)

    def model(self, k: int) -> Trained:
        """Return client k's model.

        Raises DamagedError if the checkpoint is damaged, ConfigError if there is no such model,
        CheckpointError for clients' own models within a round.
        """
        if self.in_round:
            raise CheckpointError(
                f"{self.source.path}: the run was stopped within round {self.source.rounds + 1}, "
                f"after some clients' training and before others'; continue it with --resume "
                f"{self.sources.run} first"
            )
        fed, client = self.fed, self.fed.clients[k]
        client.architecture = architecture(self.method, fed, k, self.t)
        state = (
            self.state if self.edge_of is None else self.edges.get(int(self.edge_of[k]), self.state)
        )
        with convert_unfit_errors(self.source.path):
            # clients that keep no weights may have got some in the final step
            saves_clients = self.keeps or self.source.final
            if saves_clients and f"clients/{k}" in self.source.names(f"clients/{k}"):
                stored = self.source.get(f"clients/{k}")
                fed.store.put(k, stored["weights"], stored["memory"])
            if not self.keeps and k not in fed.store.weighted:
                self.method.receive(client, self.method.offer(fed, client, state))
            client.model.eval()
            with client.borrowed():
                parts = pieces(fed, client, self.method, state)
        fed.store.forget(k)
        personal = self.keeps and parts.kind not in OF_NOW
        counted = f"clients/{self.main_metric}{'' if personal else '_received'}"
        if self.source.final:
            counted = f"{FINAL}/{self.main_metric}"
        return self.assemble(parts, k, counted, self.names[k] if self.names else "")

    def assemble(self, parts: Pieces, k: int, counted: str, name: str = "") -> Trained:
        """Return the model of these parts. k, counted, name: as in its `About`."""
        about = About(
            **self.about,
            architecture=parts.architecture,
            client=k,
            counted=counted,
            kind=parts.kind,
            more=parts.more,
            name=name,
        )
        return assemble_model(about, parts.tensors)


def has_final_step(job: Job, results: record.Record) -> bool:
    """Return whether the method changed models after the last round, as CCVR and FedBABU do."""
    own_scores = f"{FINAL}/{main_metric(results)}"  # adaptation has some, too
    return type(job.algorithm).finish is not Method.finish and own_scores in results.arrays


def from_newest(run: Path, use: Callable[[Reader], T]) -> T:
    """Return the result of `use` for the newest models that it can read without damage.

    They are those after the method's final step, or those of a checkpoint. The run may still be
    running. Raises CheckpointError if there is none.
    """
    damage: CheckpointError | None = None
    for path in checkpoint.with_models(run):
        try:
            with Reader(path) as source:
                return use(source)
        except DamagedError as error:
            damage = damage or error
    where = names.checkpoint_folder(run)
    raise damage or CheckpointError(
        f"{where}: no checkpoint here, and trained models are in checkpoints; check the "
        "path, or wait for the first one (checkpoint.every)"
    )


def select_clients(clients: Collection[int] | None, K: int) -> list[int]:
    """Return these clients, in order; all clients for None.

    Raises ConfigError for a number that the run does not have.
    """
    for k in clients or ():
        if not 0 <= k < K:
            raise ConfigError(f"client {k}: the run has {K} clients, 0 to {K - 1}")
    return list(range(K)) if clients is None else sorted(set(clients))


def inputs(header: dict[str, Any], job: Job) -> dict[str, Any]:
    """Return the facts about inputs that models need."""
    facts = header["inputs"]
    shape, vocabulary = read_shape(facts["shape"]), facts["vocabulary"]
    return {
        "mean": read_numbers(facts["mean"]),
        "std": read_numbers(facts["std"]),
        "shape": shape,
        "vocabulary": vocabulary,
        "encoder": parse(facts["encoder"], shape, vocabulary, header["classes"]),
        "classes": tuple(header["classes"]),
        "task": header["task_facts"],
        "d": job.models.d,
        "relu_head": job.models.relu_head,
    }


def federation(
    job: Job,
    about: dict[str, Any],
    results: record.Record,
    sources: Sources,
    clients: Collection[int],
) -> Federation:
    """Return a federation of one rank that has these clients, for questions about models.

    Nothing is trained or sent.
    """
    shape, label_counts = about["shape"], results.arrays.get("label_counts")
    sizes = results.arrays.get("train_sizes")
    several = shape.names if isinstance(shape, Shapes) else ()
    available = () if job.modalities.encoders == "all" else sources.held(several).clients
    kinds = assign(job, shape, len(about["classes"]), several, available)
    store = ClientStore(
        job.seed,
        shape,
        len(about["classes"]),
        job.models.d,
        job.models.relu_head,
        CPU,
        about["vocabulary"],
        finetuning=Finetuning.of(job),
        names=about["classes"],
        task=from_facts(about["task"]),
    )
    placement, wanted = [NOBODY] * job.clients, set(clients)
    for k in wanted:
        placement[k] = 0
    return Federation(
        job=job,
        comm=Serial(),
        store=store,
        architectures=kinds,
        placement=placement,
        speeds=[1.0],
        device=CPU,
        clients=Clients(placement, 0, lambda k: Owner(k, kinds[k], sources, store)),
        sizes=sources.partition.sizes if sizes is None else sizes.tolist(),
        costs=[],
        label_counts=sources.label_counts if label_counts is None else label_counts,
        classes=len(about["classes"]),
        # no times here, and only the clients' examples
        profiles=None,  # type: ignore[arg-type]
        data=SharedData(
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            about["mean"],
            about["std"],
            metrics=tuple(results.header["metrics"]),
        ),
        modalities=lambda: sources.held(several).train if several else (),
    )
