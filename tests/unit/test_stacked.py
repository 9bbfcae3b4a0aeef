"""Stacked clients: close to the eager engine, the same for any ranks, and only where all of it
holds.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hpcfed.algorithms.global_model.fedavg import FedAvg
from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core.errors import CheckpointError, DivergedError
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.upload import Transform
from hpcfed.models import MODELS, Entry
from hpcfed.training import stacked
from hpcfed.training.stacked import groups, resolve_engine
from tests.contract import toy
from tests.threads import spmd

ALIKE = (
    "--clients",
    "6",
    "--data.partition",
    "iid",
    "--participation",
    "1",
    "--local.batch",
    "5",
    "--rounds",
    "2",
)
SGD = ("--local.optimiser", "sgd", "--local.lr", "0.05")
PLAIN = (*SGD, *ALIKE, "--models.mix", "logistic")
KEPT = ("--local.keep_optimiser", "true", "--local.momentum", "0.9")
STACKED = ("--training.engine", "stacked")


def start(*flags: str, method: str = "fedavg") -> Rounds:
    """A run of which a round's cohort is drawn."""
    rounds = toy.start(Serial(), toy.job(method, *PLAIN, *STACKED, *flags))
    rounds.begin(0)
    return rounds


def formed(*flags: str, cohort: list[int]) -> list[list[int]]:
    rounds = start("--training.stack", "3", *flags)
    return groups(rounds.fed, rounds.algorithm, cohort)


def outcomes(*flags: str, method: str = "fedavg") -> list[toy.Outcome]:
    return [
        toy.run(Serial(), toy.job(method, *flags, *engine))
        for engine in (STACKED, ("--training.engine", "eager"))
    ]


def distance(a: toy.Outcome, b: toy.Outcome) -> float:
    """The largest difference of a weight, or of a column of the clients' table."""
    weights = [(a.state[name] - b.state[name]).abs().max().item() for name in a.state]
    columns = [
        np.nanmax(np.abs(a.column(n) - b.column(n)))
        for n in ("train_loss", "loss", "accuracy", "down", "up")
    ]
    return max(*weights, *columns)


def sent(method: FedAvg, rounds: Rounds) -> dict[int, torch.Tensor]:
    """What each client of the whole federation sends, as one vector."""
    fed, every = rounds.fed, list(range(rounds.fed.K))
    state = rounds.state
    parts = fed.stream(
        every,
        lambda client: method.local(fed, client, state, 0),
        together=lambda clients: stacked.train(fed, method, clients, state, 0),
    )
    return {k: torch.cat([v.flatten() for v in part.terms[0].value.values()]) for k, part in parts}


@pytest.mark.parametrize(
    "model, how",
    [
        ("logistic", SGD),
        ("mlp", (*SGD, "--local.momentum", "0.9", "--local.weight_decay", "0.01")),
        ("cnn", ("--local.lr", "1e-3")),
    ],
)
def test_stacked_clients_end_close_to_eager_ones(model: str, how: tuple[str, ...]):
    assert distance(*outcomes(*ALIKE, *how, "--models.mix", model, "--training.stack", "4")) < 1e-5


@pytest.mark.parametrize(
    "more",
    [
        ("--algorithm.mu", "1"),
        ("--local.stragglers", "0.5", "--local.epochs", "3"),
        ("--local.steps", "4"),
    ],
)
def test_a_proximal_term_and_stragglers_do_not_change_that(more: tuple[str, ...]):
    assert distance(*outcomes(*PLAIN, *more, method="fedprox")) < 1e-5


class Personal(FedAvg):
    """Each client is offered another model."""

    name: str = "personal"

    def offer(self, fed, client, state):
        return state * (1 + client.id)


def test_clients_that_are_offered_different_models_start_from_their_own():
    got, want = (sent(Personal(), start("--training.stack", size)) for size in ("4", "1"))
    assert list(got) == list(want) and all(torch.allclose(got[k], want[k], atol=1e-5) for k in want)


def test_what_the_server_makes_of_the_uploads_does_not_keep_clients_from_being_stacked():
    """The server of FedBE distils the models that it has received."""
    flags = ("--algorithm.server_epochs", "1", "--algorithm.samples", "0")
    rounds = start(*flags, method="fedbe")
    assert groups(rounds.fed, rounds.algorithm, [0, 1, 2]) == [[0, 1, 2]]
    assert distance(*outcomes(*PLAIN, *flags, method="fedbe")) < 1e-5


def test_groups_are_of_clients_with_equal_batches_in_id_order_and_never_larger_than_they_may_be():
    assert formed(cohort=[0, 1, 2, 3, 4, 5]) == [[0, 1, 2], [3, 4, 5]]
    assert formed(cohort=[0, 2, 3, 5]) == [[0, 2], [3, 5]]  # as equal as can be


def test_clients_of_different_sizes_or_work_are_never_in_one_group():
    rounds = start("--training.stack", "3")
    rounds.fed.sizes = [16, 9, 16, 9, 16, 16]
    rounds.fed.participants.partial = {4: 1}
    assert groups(rounds.fed, rounds.algorithm, [0, 1, 2, 3, 4, 5]) == [[0, 2, 5], [1, 3], [4]]


def test_evaluation_does_not_change_the_training_of_stacked_clients():
    often, never = (
        toy.run(Serial(), toy.job("fedavg", *PLAIN, *STACKED, *flags))
        for flags in (
            ("--evaluate.common", "true"),
            ("--evaluate.every", "1000", "--evaluate.before", "false"),
        )
    )
    assert (
        toy.differences(
            [often.state, often.column("train_loss")], [never.state, never.column("train_loss")]
        )
        == []
    )


def test_a_cohort_is_distributed_in_complete_groups():
    def ranks(comm) -> list[set[int]]:
        rounds = toy.start(comm, toy.job("fedavg", *PLAIN, *STACKED, "--training.stack", "2"))
        cohort = rounds.begin(0)
        ranks = rounds.fed.placement.ranks
        return [{ranks[k] for k in ks} for ks in groups(rounds.fed, rounds.algorithm, cohort)]

    assert all(
        sorted(map(len, outcome)) == [1, 1, 1] and len(set.union(*outcome)) == 3
        for outcome in spmd(3, ranks)
    )


@pytest.mark.parametrize(
    "method, flags, why",
    [
        ("fedavg", KEPT, "local.keep_optimiser is set"),
        ("fedavg", ("--local.augment", "crop-flip"), "batches are augmented"),
        ("fedavg", ("--models.mix", "resnet8"), "resnet8 has buffers"),
        ("fedsgd", (), "the method trains clients in its own way"),
        ("local", (), "clients keep weights"),
    ],
)
def test_clients_that_cannot_be_stacked_train_one_by_one_with_one_notice(
    method: str, flags: tuple[str, ...], why: str, capsys
):
    got, want = (
        toy.run(Serial(), toy.job(method, *PLAIN, *flags, "--training.engine", engine), rounds=2)
        for engine in ("stacked", "traced")
    )
    assert toy.differences(got, want) == []
    assert capsys.readouterr().err.count(f"cannot be stacked ({why}); they train one by one") == 1


def test_clients_of_which_a_transform_keeps_a_state_train_alone():
    """A turn has to find the residual in the client's memory; most random codecs have none."""
    for flags, alone in (
        ((), False),
        (("--compression.by", "qsgd"), False),
        (("--compression.by", "top-k"), True),
        (("--compression.down", "qsgd"), True),
    ):
        rounds = start("--training.stack", "3", *flags)
        stacked = groups(rounds.fed, rounds.algorithm, [0, 1, 2])
        assert stacked == ([[0], [1], [2]] if alone else [[0, 1, 2]])
    rounds = start("--training.stack", "3")
    rounds.fed.transforms.append(Transform())
    assert groups(rounds.fed, rounds.algorithm, [0, 1, 2]) == [[0], [1], [2]]


def test_uploads_of_clients_that_train_as_one_are_encoded_each():
    small = ("--compression.min_size", "16", "--compression.feedback", "none")
    codecs = ("random-k", "top-k")
    plain, lossless, lossy = (
        toy.run(Serial(), toy.job("fedavg", *PLAIN, "--training.engine", "stacked", *flags))
        for flags in (
            (),
            (*small, "--compression.by", codecs[0], "--compression.share", "1"),
            (*small, "--compression.by", codecs[1]),
        )
    )
    assert toy.differences(plain.state, lossless.state) == []
    assert toy.differences(plain.state, lossy.state) != []
    assert (lossy.column("up").sum(1) < plain.column("up").sum(1) / 4).all()


def dropping(shape: tuple[int, ...], d: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), d), nn.Dropout(0.5))


def test_dropout_draws_client_by_client_so_that_it_is_not_stacked(capsys, monkeypatch):
    monkeypatch.setitem(MODELS, "dropping", Entry(f"{__name__}:dropping", "of this test"))
    flags = (*PLAIN, "--models.mix", "dropping")
    got, want = (
        toy.run(Serial(), toy.job("fedavg", *flags, "--training.engine", e))
        for e in ("stacked", "traced")
    )
    assert toy.differences(got, want) == []
    assert capsys.readouterr().err.count("Method.loss cannot be stacked (vmap") == 1


class Poisoned(FedAvg):
    """Client 3 is offered nan."""

    name: str = "poisoned"

    def offer(self, fed, client, state):
        return state * (math.nan if client.id == 3 else 1)


def test_a_member_of_a_group_that_diverges_is_named():
    with pytest.raises(
        DivergedError,
        match=r"rank 0 of 1: client 3 \(logistic\): the loss is nan in round 1, epoch 1",
    ):
        sent(Poisoned(), start())


@pytest.mark.parametrize(
    "more, wanted",
    [
        ((), "stacked"),
        (("--rounds", "100000"), "stacked"),
        (("--participation", "0.4"), "auto"),
        (("--clients", "32", "--training.stack", "64"), "stacked"),
        (("--clients", "31", "--training.stack", "64"), "auto"),
        (("--models.mix", "cnn", "--models.d", "512"), "auto"),
        (KEPT, "auto"),
        (("--data.partition", "dirichlet", "--data.sizes", "free", "--data.alpha", "5"), "auto"),
        (("--training.engine", "eager"), "eager"),
        (("--algorithm.name", "local"), "auto"),
    ],
)
def test_auto_stacks_many_equal_clients_with_tiny_models_for_any_number_of_rounds(
    more: tuple[str, ...], wanted: str
):
    flags = (*PLAIN, "--clients", "12", "--training.stack", "6", *more)
    assert toy.start(Serial(), toy.job("fedavg", *flags)).fed.job.training.engine == wanted


class Collects(FedAvg):
    """A user's own method, whose objective has something to write into."""

    def loss(self, client, state, model, x, y):
        BATCHES.append(y)
        return super().loss(client, state, model, x, y)


BATCHES: list[torch.Tensor] = []


def test_auto_does_not_stack_a_users_own_objective():
    job = toy.job("fedavg", *PLAIN, "--clients", "12", "--training.stack", "6")
    fed = toy.start(Serial(), job).fed
    fed.job = job
    engines = [
        resolve_engine(fed, method, gpus=False).training.engine for method in (FedAvg(), Collects())
    ]
    assert engines == ["stacked", "auto"]


def saved(folder: Path, *flags: str, **how: object) -> toy.Outcome:
    return toy.run(Serial(), toy.job("fedavg", *PLAIN, *flags), **how)


def test_a_run_can_be_resumed_with_another_exact_engine_but_not_with_stacked(tmp_path: Path):
    saved(tmp_path, "--training.engine", "eager", rounds=1, save=tmp_path)
    assert saved(tmp_path, "--training.engine", "traced", resume=tmp_path).rows
    with pytest.raises(
        CheckpointError,
        match="training.engine: stacked here, eager, traced or graphed in the checkp",
    ):
        saved(tmp_path, *STACKED, resume=tmp_path)


def test_a_stacked_run_can_be_resumed_only_with_the_same_group_size(tmp_path: Path):
    saved(tmp_path, *STACKED, rounds=1, save=tmp_path)
    with pytest.raises(CheckpointError, match="training.stack: 8 here, 64 in the checkpoint"):
        saved(tmp_path, *STACKED, "--training.stack", "8", resume=tmp_path)
    with pytest.raises(
        CheckpointError,
        match="training.engine: eager, traced or graphed here, stacked in the checkp",
    ):
        saved(tmp_path, "--training.engine", "eager", resume=tmp_path)


def test_clients_of_a_population_with_own_memories_are_stacked():
    words = (
        "--algorithm.name",
        "fedavg",
        "--data.name",
        "synthetic",
        "--data.partition",
        "natural",
        "--data.examples",
        "20",
        "--clients",
        "8",
        "--rounds",
        "2",
        "--models.mix",
        "logistic",
        *SGD,
    )
    got, want = (
        toy.run(Serial(), load([*words, "--training.engine", e], environ={}))
        for e in ("stacked", "eager")
    )
    assert distance(got, want) < 1e-5 and toy.differences(got, want) != []
