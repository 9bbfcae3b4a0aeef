"""FedMD, DS-FL and FedDF: what they become in neutral settings, and what must hold of their public
data.
"""

import numpy as np
import pytest
import torch

from hpcfed.algorithms.public_data import feddf
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError, DataError, DivergedError
from hpcfed.core.params import Mean, Params
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.upload import Upload
from hpcfed.training.evaluate import common
from hpcfed.training.infer import outputs
from hpcfed.training.losses import distil, soften
from hpcfed.training.server import predictor, split_holdout
from tests.contract import toy
from tests.contract.test_equalities import run
from tests.threads import spmd

ONE = ("--models.mix", "small")
NO_TRANSFER = ("--algorithm.transfer_epochs", "0")
MLPS = ("--models.mix", "mlp,logistic")  # neither batch statistics nor dropout
MINE = (
    "--data.public",
    "24",
    "--data.public_source",
    "",
)  # public data of the clients' own kind, with their labels
DRAWN = ("--clients", "4", "--data.partition", "iid")

EQUAL = {  # claim: (method, flags), (method that it must equal, flags)
    "fedmd without digest and transfer is local": (
        ("fedmd", "--algorithm.digest_epochs", "0", *NO_TRANSFER),
        ("local",),
    ),
    "dsfl without distillation is local": (("dsfl", "--algorithm.distil_epochs", "0"), ("local",)),
    "feddf without distillation is fedavg of one architecture": (
        ("feddf", "--algorithm.steps", "0", *ONE),
        ("fedavg", *ONE),
    ),
    "feddf that never finds a better student is fedavg": (
        ("feddf", "--algorithm.steps", "3", "--algorithm.server_lr", "1e9", *ONE),
        ("fedavg", *ONE),
    ),
}


@pytest.mark.parametrize("claim", EQUAL)
def test_equal_to_the_bit(claim: str):
    ours, theirs = (run(*words) for words in EQUAL[claim])
    if "feddf" in claim:
        params = {name.removeprefix("small/"): value for name, value in ours.state.items()}
        assert toy.differences(params, theirs.state) == []
    for part in ("weights", "memory", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    for column in ("train_loss", "accuracy", "loss", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_feddf_without_distillation_is_fedavg_within_each_architecture():
    rounds, alone = (
        begun("feddf", "--algorithm.steps", "0", "--participation", "1") for _ in range(2)
    )
    rounds.step()
    single = {
        kind: ks[0]
        for kind in set(rounds.fed.architectures)
        if len(ks := members(rounds, kind)) == 1
    }
    assert len(single) == 4  # the mean of one client's model is that model
    opened(alone)
    for kind, k in single.items():
        (part,) = alone.algorithm.local(alone.fed, alone.fed.clients[k], alone.state, 0).value.terms
        assert toy.differences(rounds.state.under(f"{kind}/"), part.value) == []


def begun(method: str, *flags: str) -> Rounds:
    return toy.start(Serial(), toy.job(method, *flags))


def opened(rounds: Rounds) -> None:
    """Open round 0 for all clients."""
    rounds.fed.participants.begin(0, list(range(rounds.fed.K)), False)


def members(rounds: Rounds, kind: str) -> list[int]:
    return [k for k, other in enumerate(rounds.fed.architectures) if other == kind]


def test_the_consensus_is_the_mean_of_the_cohorts_logits_and_each_round_draws_its_own_examples(
    monkeypatch: pytest.MonkeyPatch,
):
    batches = []

    def noted(fed, client, data):
        z = torch.full((len(data), fed.classes), float(client.id))
        batches.append((client.id, data.rows.tolist()))
        return z

    monkeypatch.setattr("hpcfed.algorithms.public_data.fedmd.logits", noted)
    targets = []
    rounds = begun("fedmd", *NO_TRANSFER, "--algorithm.subset", "8", "--participation", "1")
    monkeypatch.setattr(
        type(rounds.algorithm).__mro__[1],
        "approach",
        lambda self, model, x, consensus: targets.append(consensus) or model(x).sum() * 0,
    )
    rounds.step()
    assert [k for k, _ in batches] == [0, 1, 2, 3, 4, 5] and len(
        {str(rows) for _, rows in batches}
    ) == 1
    assert (
        all(torch.equal(t, torch.full((8, toy.CLASSES), 2.5)) for t in targets)
        and len(targets) == 6
    )
    rounds.step()
    assert batches[0][1] != batches[-1][1]


def test_all_ranks_draw_the_same_public_examples_without_a_word():
    def drawn(comm):
        return toy.start(comm, toy.job("fedmd")).fed.draw_public(3, 10).tolist()

    assert len({str(rows) for rows in spmd(3, drawn)}) == 1


def test_fedmd_learns_the_public_data_first_and_once():
    rounds = begun(
        "fedmd",
        "--algorithm.transfer_epochs",
        "40",
        "--algorithm.digest_epochs",
        "0",
        *MLPS,
        "--participation",
        "0.01",
    )
    rounds.step()
    fed = rounds.fed
    correct = [
        float(
            (outputs(fed, c.model.eval(), fed.public).argmax(1).numpy() == fed.public.labels).mean()
        )
        for c in fed.mine([2, 3, 4, 5])
    ]
    assert min(correct) > 0.9 and all(c.memory["transferred"] for c in fed.clients.values())
    before = [c.params() for c in fed.clients.values()]
    cohort = np.flatnonzero(rounds.step()[0]["clients/cohort"])
    changed = [k for k, c in fed.clients.items() if toy.differences(before[k], c.params())]
    assert changed == cohort.tolist()


def test_fedmd_refuses_public_labels_that_clients_do_not_have(tmp_path):
    x, y = np.zeros((20, 1, 8, 8), np.uint8), np.arange(20) % 10
    np.savez(tmp_path / "ten.npz", x_train=x[:, 0], y_train=y, x_test=x[:, 0], y_test=y)
    flags = ("--data.public", "20", "--data.public_source", str(tmp_path / "ten.npz"))
    with pytest.raises(
        DataError,
        match="one is 9, and the clients have 4 classes; set algorithm.transfer_epochs = 0",
    ):
        begun("fedmd", *flags)
    assert begun("fedmd", *flags, *NO_TRANSFER).step()


@pytest.mark.parametrize("method", ["ktpfl", "fedmd", "dsfl", "feddf", "fedhenn"])
def test_a_partition_file_without_the_public_examples_is_refused(method: str):
    with pytest.raises(DataError, match="holds 0 public examples, but data.public is 24"):
        begun(method, *MINE)


ALONE = ("--models.mix", "mlp", "--clients", "1", "--data.train_limit", "30", "--rounds", "1")


def test_dsfls_server_learns_the_predictions_of_its_only_client():
    much = (
        "--algorithm.distil_epochs",
        "150",
        "--algorithm.aggregation",
        "sa",
        "--algorithm.server_lr",
        "2",
    )
    rounds = begun("dsfl", "--models.server", "mlp", *much, *ALONE, "--local.epochs", "10")
    fed, start = rounds.fed, rounds.state
    rounds.step()
    soft = [
        outputs(fed, predictor(fed, "mlp", of), fed.public).softmax(1)
        for of in (rounds.state, start)
    ]
    target = outputs(fed, fed.clients[0].model.eval(), fed.public).softmax(1)
    assert (soft[0] - target).abs().max() < 0.05 < (soft[1] - target).abs().max()


def test_feddfs_student_learns_its_teachers_predictions():
    much = ("--algorithm.steps", "300", "--algorithm.server_batch", "32")
    rate = ("--algorithm.server_lr", "0.02", "--algorithm.clip", "0")
    rounds = begun("feddf", *ALONE, *much, *rate, "--algorithm.validation", "0")
    fed = rounds.fed
    opened(rounds)
    teacher = torch.randn(len(fed.public), toy.CLASSES, generator=torch.Generator().manual_seed(0))
    state = rounds.algorithm.teach(fed, rounds.state, [0], teacher)
    learnt = outputs(fed, predictor(fed, "mlp", state.under("mlp/")), fed.public)
    assert (learnt.softmax(1) - teacher.softmax(1)).abs().max() < 0.05


def test_feddfs_student_of_a_single_client_is_its_teacher_at_the_start():
    rounds = begun("feddf", *ALONE, "--algorithm.steps", "0")
    rounds.step()
    fed = rounds.fed
    opened(rounds)
    fed.clients[0].load(rounds.state.under("mlp/"))
    z = outputs(fed, fed.clients[0].model.eval(), fed.public)
    student = outputs(fed, predictor(fed, "mlp", rounds.state.under("mlp/")), fed.public)
    assert distil(soften(z), student).item() == pytest.approx(0.0, abs=1e-6)


def test_all_groups_of_feddf_learn_from_the_same_teacher_the_mean_of_all_logits(
    monkeypatch: pytest.MonkeyPatch,
):
    calls = []
    rounds = begun("feddf", *MLPS, "--participation", "1")
    fed = rounds.fed
    learn = feddf.fit_targets
    monkeypatch.setattr(
        feddf,
        "fit_targets",
        lambda fed, kind, start, data, *rest, **how: (
            calls.append((kind, data.soft)) or learn(fed, kind, start, data, *rest, **how)
        ),
    )
    arguments = {}
    answer = feddf.answer_public

    def noted(fed, k, model, *rest):
        client = fed.clients[k]
        arguments[k] = outputs(fed, client.model.eval(), fed.public)
        return answer(fed, k, model, *rest)

    monkeypatch.setattr(feddf, "answer_public", noted)
    rounds.step()
    want = soften(torch.stack(list(arguments.values())).double().mean(0).float())
    assert [kind for kind, _ in calls] == ["logistic", "mlp"] and len(arguments) == fed.K == 6
    assert all(torch.allclose(soft, want, atol=1e-6) for _, soft in calls)


def test_feddf_can_leave_out_a_client_that_only_guesses(monkeypatch: pytest.MonkeyPatch):
    flags = (
        "--models.mix",
        "mlp",
        *MINE,
        *DRAWN,
        "--participation",
        "1",
        "--local.epochs",
        "30",
        "--rounds",
        "1",
        "--algorithm.steps",
        "0",
    )
    dropping = ("--algorithm.validation", "0.5", "--algorithm.drop_worst", "1.2")
    rounds = begun("feddf", *flags, *dropping)
    method, plain = type(rounds.algorithm), begun("feddf", *flags)
    local = method.local

    def spoilt(self, fed, client, state, t):
        part = local(self, fed, client, state, t)
        if client.id == 2:  # answers class 0 always
            client.load(
                {
                    "head.weight": torch.zeros(toy.CLASSES, toy.D),
                    "head.bias": torch.tensor([9.0, 0, 0, 0]),
                }
            )
            part = Upload(Mean.of(client.params(), self.weight(client)))
        return part

    for kind in (method, type(plain.algorithm)):
        monkeypatch.setattr(kind, "local", spoilt, raising=False)
    weights = []
    answer = feddf.answer_public
    monkeypatch.setattr(
        feddf, "answer_public", lambda *a: weights.append(answer(*a)[1]) or answer(*a)
    )
    rounds.step()
    plain.step()
    assert weights == [1, 1, 0, 1, 1, 1, 1, 1]
    bias = [r.state["mlp/head.bias"][0].item() for r in (rounds, plain)]
    assert abs(bias[0]) < 1 < 2 < bias[1]  # a quarter of 9


def test_feddf_with_clients_that_guess_changes_nothing():
    rounds = begun(
        "feddf",
        "--models.mix",
        "mlp",
        *MINE,
        *DRAWN,
        "--algorithm.validation",
        "0.5",
        "--algorithm.drop_worst",
        "4.1",
    )
    before = rounds.state
    rounds.step()
    assert toy.differences(before, rounds.state) == []


@pytest.mark.parametrize("flags", [("--algorithm.validation", "0", *MINE), ()])
def test_feddf_needs_labels_to_leave_clients_out(flags: tuple[str, ...]):
    with pytest.raises(
        ConfigError, match="feddf needs held-out public data with the clients' labels"
    ):
        toy.job("feddf", "--algorithm.drop_worst", "1.2", *flags)


def test_feddf_reports_each_architecture_and_their_ensemble():
    rounds = begun("feddf", *MLPS, "--evaluate.common", "true")
    row = rounds.step()[0]
    right = {
        n: row[f"rounds/accuracy_{n}"]
        for n in ("common", "common_mlp", "common_logistic", "ensemble")
    }
    assert (
        all(0 <= share <= 1 for share in right.values()) and right["common"] == right["common_mlp"]
    )
    one = begun("feddf", "--models.mix", "mlp", "--evaluate.common", "true").step()[0]
    assert "rounds/accuracy_ensemble" not in one and 0 <= one["rounds/accuracy_common"] <= 1


@pytest.mark.parametrize("method, flags", [("dsfl", ("--models.server", "small")), ("feddf", MLPS)])
@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_do_not_matter_for_the_servers_models(
    method: str, flags: tuple[str, ...], ranks: int
):
    job = toy.job(method, *flags, "--evaluate.common", "true", "--evaluate.received", "true")
    want = toy.run(Serial(), job)
    assert all(0 <= row["rounds/accuracy_common"] <= 1 for row in want.rows)
    for got in spmd(ranks, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize("method, flags", [("dsfl", ("--models.server", "small")), ("feddf", MLPS)])
def test_a_stopped_run_with_server_models_continues_to_the_same_bits(method, flags, tmp_path):
    job = toy.job(method, *flags, "--evaluate.common", "true")
    want = toy.run(Serial(), job)
    spmd(3, lambda comm: toy.run(comm, job, rounds=1, save=tmp_path))
    for got in spmd(2, lambda comm: toy.run(comm, job, resume=tmp_path)):
        assert (
            toy.differences(
                [got.rows, got.state, got.weights], [want.rows[1:], want.state, want.weights]
            )
            == []
        )


def test_dsfls_server_is_the_model_that_is_evaluated_as_common():
    rounds = begun("dsfl", "--models.server", "mlp", "--evaluate.common", "true")
    row = rounds.step()[0]
    fed = rounds.fed
    assert row["rounds/accuracy_common"] == common(fed, predictor(fed, "mlp", Params(rounds.state)))
    assert np.isnan(begun("dsfl", "--evaluate.common", "true").step()[0]["rounds/accuracy_common"])


UNWATCHED = ("--algorithm.validation", "0", "--algorithm.clip", "0")


@pytest.mark.parametrize(
    "method, flags", [("dsfl", ("--models.server", "mlp")), ("feddf", UNWATCHED)]
)
def test_a_servers_model_that_diverges_ends_the_run(method: str, flags: tuple[str, ...]):
    with pytest.raises(
        DivergedError, match="server: its .* is nan or infinite after its training in round 1"
    ):
        begun(method, *flags, "--algorithm.server_lr", "1e30").step()


def test_validation_examples_are_the_same_in_all_rounds_and_not_trained_on():
    fed = begun("feddf").fed
    rows, apart = split_holdout(fed, 32, 0.25)
    assert len(apart) == 8 and sorted([*rows, *apart]) == list(range(32))
    assert all(
        np.array_equal(a, b)
        for a, b in zip(split_holdout(fed, 32, 0.25), (rows, apart), strict=True)
    )
    assert len(split_holdout(fed, 32, 0.0)[1]) == 0
