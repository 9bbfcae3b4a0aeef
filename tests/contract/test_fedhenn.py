"""FedHeNN: the pull on representations, the mean kernel, and the last mean."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.algorithms import received
from hpcfed.algorithms.public_data import alignment, fedhenn, kernels
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.rounds import Rounds
from hpcfed.training import similarity
from hpcfed.training.infer import represent
from tests import saving
from tests.contract import toy
from tests.threads import spmd

ONE = ("--algorithm.setting", "homogeneous", "--models.mix", "mlp")
SMALL = (
    "--algorithm.setting",
    "homogeneous",
    "--models.mix",
    "small",
)  # with dropout and batch normalisation


def started(*flags: str, comm=None) -> Rounds:
    return toy.start(comm or Serial(), toy.job("fedhenn", *flags))


def begun(*flags: str) -> Rounds:
    """A run inside its first round."""
    rounds = started(*flags)
    rounds.fed.participants.begin(0, rounds.algorithm.cohort(rounds.fed, 0), False)
    return rounds


def rad(rounds: Rounds):
    return rounds.fed.public.pick(rounds.fed.draw_public(0, rounds.algorithm.rad_size))


def target(rounds: Rounds, cohort: list[int] | None = None) -> Tensor | None:
    cohort = cohort or rounds.fed.sample(0)
    members = rounds.algorithm.members(rounds.fed, rounds.state, cohort)
    return fedhenn.mean_of_clients(rounds.fed, rad(rounds), members, rounds.algorithm)


def kernel(rounds: Rounds, k: int) -> Tensor:
    """The linear kernel of a client, computed here."""
    z = represent(rounds.fed, rounds.fed.clients[k], rad(rounds))
    return z @ z.T


# The pull


@pytest.mark.parametrize(
    "how", [(), ("--algorithm.kernel", "rbf"), ("--algorithm.distance", "procrustes")]
)
def test_a_client_that_has_just_received_the_model_is_not_pulled(how: tuple[str, ...]):
    rounds = begun(*ONE, *how)
    client = rounds.fed.clients[3]
    client.load(rounds.state)
    distance = fedhenn.distance_to(rounds.fed, client, rad(rounds), None, rounds.algorithm)
    value = distance(alignment.compute_representations(rounds.fed, client, rad(rounds)))
    client.skeleton.zero_grad()
    value.backward()
    assert abs(value.item()) < 1e-5 and client.skeleton.grad.abs().max() < 1e-5


def test_the_first_loss_is_the_task_s_plus_the_weighted_distance():
    rounds = begun("--algorithm.eta0", "0.5", "--models.mix", "mlp")
    fed, client, data = rounds.fed, rounds.fed.clients[3], rad(rounds)
    far = similarity.normalise_kernel(torch.eye(len(data)) + kernel(rounds, 4))
    task = partial(rounds.algorithm.loss, client, rounds.state)
    objective = alignment.add_alignment(
        fed, client, task, data, lambda z: 1 - similarity.cka_to_kernel(z, far), 0.5
    )
    x, y = client.train.batch(np.arange(client.n))
    x = fed.prepare(x)
    z = represent(fed, client, data)
    want = F.cross_entropy(client.model(x), y) + 0.5 * (
        1
        - similarity.linear_cka(
            z,
            torch.linalg.cholesky(
                torch.eye(len(data), dtype=torch.float64) + kernel(rounds, 4).double()
            ).float(),
        )
    )
    assert objective(client.model, x, y).item() == pytest.approx(want.item(), rel=1e-4)


@pytest.mark.parametrize("schedule, third", [("constant", 1.0), ("sqrt", 3**0.5), ("linear", 3.0)])
def test_the_weight_grows_with_the_round(
    schedule: str, third: float, monkeypatch: pytest.MonkeyPatch
):
    rounds, weights = started("--algorithm.schedule", schedule, "--algorithm.eta0", "0.5"), []
    monkeypatch.setattr(
        fedhenn, "add_alignment", lambda fed, client, loss, *rest: weights.append(rest[2]) or loss
    )
    for _ in range(3):
        rounds.step()
    assert weights[0] == 0.5 and weights[-1] == pytest.approx(0.5 * third)


def test_the_term_is_in_the_first_step_of_each_interval():
    rounds = begun(*ONE)
    client = rounds.fed.clients[3]
    loss = alignment.add_alignment(
        rounds.fed,
        client,
        lambda *_: torch.tensor(1.0),
        rad(rounds),
        lambda z: z.new_ones(()),
        2.0,
        3,
    )
    assert [loss(client.model, None, None).item() for _ in range(7)] == [3, 1, 1, 3, 1, 1, 3]


def pull(chunk: int, model: str) -> tuple[Tensor, Tensor]:
    """Gradient of a client's distance to another one's kernel, and its flat vector after; RAD in
    chunks.
    """
    rounds = begun("--models.mix", model, "--evaluate.batch", str(chunk))
    client, far = rounds.fed.clients[3], similarity.normalise_kernel(kernel(rounds, 4))
    client.model.train()
    client.skeleton.zero_grad()
    (
        1
        - similarity.cka_to_kernel(
            alignment.compute_representations(rounds.fed, client, rad(rounds)), far
        )
    ).backward()
    assert client.model.training and client.model.body.training
    return client.skeleton.grad.clone(), client.skeleton.flat.clone()


@pytest.mark.parametrize("model", ["mlp", "small", "fedhenn-3"])
def test_the_gradient_in_chunks_is_that_of_all_examples_at_once(model: str):
    (full, before), (chunked, after) = pull(32, model), pull(5, model)
    assert full.abs().max() > 1e-5 and torch.allclose(full, chunked, rtol=1e-3, atol=1e-7)
    assert torch.equal(before, after)  # no batch statistics moved


def saved_bytes(rounds: Rounds, forward: Callable[[], Tensor]) -> int:
    """Bytes of the tensors that are kept for the backward pass."""
    counts: dict[int, int] = {}

    def keep(v: Tensor) -> Tensor:
        counts[v.untyped_storage().data_ptr()] = v.untyped_storage().nbytes()
        return v

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda v: v):
        value = forward()
    assert value.requires_grad
    return sum(counts.values())


def test_activations_of_the_examples_are_not_kept_for_the_backward_pass():
    rounds = begun("--models.mix", "cnn", "--evaluate.batch", "4")
    client, data = rounds.fed.clients[3], rad(rounds)
    x = rounds.fed.prepare(data.batch(np.arange(len(data)))[0])
    plain = saved_bytes(rounds, lambda: client.model.eval().body(x))
    ours = saved_bytes(rounds, lambda: alignment.compute_representations(rounds.fed, client, data))
    assert plain > 100_000 and ours < 0.01 * plain


def test_recurrent_layers_keep_the_mode_that_gradients_need_and_the_others_do_not():
    model = nn.ModuleList(
        [nn.LSTM(2, 2), nn.LSTM(2, 2, num_layers=2, dropout=0.5), nn.Dropout(), nn.BatchNorm1d(2)]
    )
    with alignment.eval_mode(model):
        assert [module.training for module in model] == [True, False, False, False]
    assert all(module.training for module in model)


# The mean kernel


def test_the_mean_kernel_is_the_mean_of_all_clients_kernels(monkeypatch: pytest.MonkeyPatch):
    rounds = begun()
    monkeypatch.setattr(kernels, "STRIP", 5)  # 32 examples: strips of 5, the last of 2
    want = sum(kernel(rounds, k).double() for k in range(6)) / 6
    got = fedhenn.mean_of_kernels(rounds.fed, parts(rounds), 32)
    assert torch.allclose(got.double(), want, rtol=1e-4, atol=1e-4)
    assert torch.allclose(target(rounds), similarity.normalise_kernel(got), atol=1e-5)


def parts(rounds: Rounds) -> dict[int, fedhenn.Kernel]:
    fed, how = rounds.fed, rounds.algorithm
    return {
        c.id: fedhenn.Kernel.of(represent(fed, c, rad(rounds)), how) for c in fed.clients.values()
    }


@pytest.mark.parametrize("kind", ["linear", "rbf"])
def test_the_mean_kernel_is_symmetric_and_positive_semidefinite(kind: str):
    rounds = begun("--algorithm.kernel", kind)
    got = fedhenn.mean_of_kernels(rounds.fed, parts(rounds), 32)
    least, *_, most = torch.linalg.eigvalsh(got.double())
    assert torch.equal(got, got.T) and least > -1e-5 * most and most > 0


@pytest.mark.parametrize("norm", ["none", "frobenius"])
def test_the_mean_kernel_does_not_depend_on_the_order_of_the_clients_nor_on_the_ranks(norm: str):
    rounds = begun("--algorithm.kernel_norm", norm)
    kernels = parts(rounds)
    turned = {k: kernels[5 - k] for k in range(6)}
    assert torch.equal(
        fedhenn.mean_of_kernels(rounds.fed, kernels, 32),
        fedhenn.mean_of_kernels(rounds.fed, turned, 32),
    )


def test_the_cohort_changes_the_mean_kernel_only_if_that_is_over_the_cohort():
    assert torch.equal(target(begun(), [0, 1]), target(begun(), [2, 3, 5]))
    cohorts = [
        target(begun("--algorithm.mean_over", "cohort"), cohort) for cohort in ([0, 1], [2, 3, 5])
    ]
    assert not torch.allclose(*cohorts, atol=1e-3)


def of_the_round_before(*flags: str) -> Rounds:
    return started("--algorithm.mean_over", "previous", "--models.mix", "mlp", *flags)


def test_the_mean_kernel_of_the_previous_cohort_is_that_of_its_models_on_todays_examples():
    """Nobody's in the first round, as in the authors' code; there the cohort trains alone."""
    rounds = of_the_round_before("--algorithm.rad_size", "8")
    first_cohort, alone = (
        rounds.fed.sample(0),
        started("--algorithm.eta0", "0", "--models.mix", "mlp"),
    )
    assert target(rounds, first_cohort) is None
    rounds.step()
    alone.step()
    assert toy.differences(*(learnt(r) for r in (rounds, alone))) == []
    cohort = rounds.begin(1)
    assert cohort != first_cohort
    rad = rounds.fed.public.pick(rounds.fed.draw_public(1, 8))
    z = {k: represent(rounds.fed, rounds.fed.clients[k], rad).double() for k in first_cohort}
    want = sum(v @ v.T for v in z.values()) / len(first_cohort)
    members = rounds.algorithm.members(rounds.fed, rounds.state, cohort)
    got = fedhenn.mean_of_clients(rounds.fed, rad, members, rounds.algorithm)
    assert members == first_cohort
    assert torch.allclose(got, similarity.normalise_kernel(want.float()), atol=1e-4)


def learnt(rounds: Rounds) -> dict[int, Tensor]:
    return {k: c.skeleton.flat.clone() for k, c in rounds.fed.clients.items()}


def test_the_previous_cohort_survives_a_checkpoint_and_another_number_of_ranks(tmp_path: Path):
    job = toy.job("fedhenn", "--algorithm.mean_over", "previous", "--models.mix", "mlp,logistic")
    want = toy.run(Serial(), job)
    spmd(2, lambda comm: toy.run(comm, job, rounds=1, save=tmp_path))
    assert all(
        toy.differences(got.weights, want.weights) == []
        for got in spmd(3, lambda comm: toy.run(comm, job, resume=tmp_path))
    )
    other = toy.run(Serial(), toy.job("fedhenn", "--models.mix", "mlp,logistic"))
    assert toy.differences(other.weights, want.weights) != []


def test_the_cohort_sends_its_models_for_any_choice_of_the_mean():
    rounds = of_the_round_before()
    for t in (0, 1):
        cohort = rounds.fed.sample(t)
        row, _ = rounds.step()
        assert row["clients/up"].tolist() == [4 * 16284 * (k in cohort) for k in range(6)]
        assert (row["clients/down"] > 0).sum() == t * len(cohort)


def test_equal_clients_have_their_common_kernel_for_a_mean():
    rounds = begun("--models.mix", "mlp")
    for client in rounds.fed.clients.values():
        client.load(rounds.fed.initial())
    got = fedhenn.mean_of_kernels(rounds.fed, parts(rounds), 32)
    assert torch.allclose(got, kernel(rounds, 2), rtol=1e-6)


def test_one_client_alone_is_not_pulled_at_first():
    rounds = begun("--clients", "1", "--data.train_limit", "20", "--models.mix", "mlp")
    client = rounds.fed.clients[0]
    distance = fedhenn.distance_to(
        rounds.fed, client, rad(rounds), target(rounds, [0]), rounds.algorithm
    )
    assert abs(distance(represent(rounds.fed, client, rad(rounds))).item()) < 1e-5


def test_large_activations_do_not_outweigh_others_if_kernels_have_length_one():
    z = torch.randn(10, 3, generator=torch.Generator().manual_seed(1))
    for kind in ("linear", "rbf"):
        how = begun("--algorithm.kernel_norm", "frobenius", "--algorithm.kernel", kind).algorithm
        small, large = (fedhenn.Kernel.of(v, how).rows(0, 10) for v in (z, 1000 * z))
        assert torch.allclose(small, large, rtol=1e-3, atol=1e-5)
        assert torch.linalg.matrix_norm(similarity.centre_kernel(small)).item() == pytest.approx(
            1, rel=1e-5
        )


def test_rounding_alone_does_not_become_a_kernel_of_length_one():
    how = begun("--algorithm.kernel_norm", "frobenius").algorithm
    z = 3 + 1e-7 * torch.randn(10, 3, generator=torch.Generator().manual_seed(1))
    assert fedhenn.Kernel.of(z, how).rows(0, 10).count_nonzero() == 0


@pytest.mark.parametrize("upload, members", [("model", 3), ("representations", 6), ("kernel", 6)])
def test_uploads_are_counted(upload: str, members: int):
    rounds = started("--algorithm.upload", upload, "--models.mix", "mlp,logistic")
    row, _ = rounds.step()
    kernels = {
        "model": [4 * n for n in (16284, 260)],
        "representations": [4 * 32 * d for d in (16, 64)],
        "kernel": [4 * 32 * 33 // 2] * 2,
    }[upload]
    sent, cohort = row["clients/up"], row["clients/cohort"]
    assert (sent > 0).sum() == members
    assert all(sent[k] == kernels[k % 2] for k in range(6) if members == 6 or cohort[k])
    assert row["clients/down"].tolist() == [4 * 32 * 32 * int(c) for c in cohort]


# The homogeneous setting as a whole

LAST_MEANS = {  # what may stand in the place of the last mean
    "mean": (),
    "random groups": (
        *("--algorithm.weighting", "uniform", "--defence.by", "median", "--defence.bucket", "2"),
    ),
    "memory of updates": (
        *("--algorithm.weighting", "uniform", "--defence.by", "centred-clipping"),
        *("--defence.clip", "0.1"),
    ),
    "noise": ("--defence.by", "flame", "--algorithm.weighting", "uniform"),
}


def last_mean(rounds: Rounds) -> Params:
    """The paper's last mean, computed here: by examples, over all clients."""
    fed, initial = rounds.fed, rounds.fed.initial()
    models = {k: received.model(c) or initial for k, c in fed.clients.items()}
    total = sum(toy.SIZES)
    return Params(
        {n: sum(models[k][n].double() * toy.SIZES[k] for k in models) / total for n in initial}
    )


def test_the_final_model_is_the_mean_of_all_clients_last_models():
    rounds = started(*SMALL)
    rounds.step()
    assert len(received.models(rounds.fed)) == 3  # the others count as they began
    final, want, before = rounds.finish(), last_mean(rounds), rounds.state
    assert all(
        torch.allclose(before[name].double(), want[name], rtol=1e-6, atol=1e-9) for name in want
    )
    assert (
        np.isfinite(final["accuracy"][:5]).all()
        and np.isfinite(final["accuracy_received"][:5]).all()
    )


def test_there_is_no_final_model_where_models_differ():
    rounds = started()
    rounds.step()
    assert rounds.finish() == {}


@pytest.mark.parametrize(
    "how", [("--algorithm.kernel", "rbf"), ("--algorithm.distance", "procrustes"), ()]
)
def test_ranks_do_not_matter(how: tuple[str, ...]):
    job = toy.job("fedhenn", *SMALL, *how, "--rounds", "2")
    want = toy.run(Serial(), job)
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


@pytest.mark.parametrize("how", LAST_MEANS)
def test_a_stopped_run_continues_to_the_same_bits_and_the_same_final_model(
    tmp_path: Path, how: str
):
    flags = ("--rounds", "2", "--evaluate.every", "1000", "--evaluate.before", "false")
    job = toy.job("fedhenn", *SMALL, "--local.keep_optimiser", "true", *flags, *LAST_MEANS[how])

    def save(rounds: Rounds) -> None:  # the second one when only the last mean is left
        saving.save(rounds, tmp_path / str(rounds.t))

    def final(comm, resume: int = 0) -> Params:
        rounds = toy.start(comm, job)
        if resume:
            restore(rounds, tmp_path / str(resume))
        while rounds.t < job.rounds:
            rounds.step()
        rounds.finish()
        return rounds.state

    spmd(2, lambda comm: toy.run(comm, job, between=save))
    want = final(Serial())
    for stopped in (1, 2):
        for got in spmd(3, lambda comm, t=stopped: final(comm, resume=t)):
            assert toy.differences(got, want) == []


def test_evaluation_changes_nothing():
    often, never = (
        ("--evaluate.common", "true", "--evaluate.received", "true"),
        ("--evaluate.every", "1000"),
    )
    ours, theirs = (
        toy.run(Serial(), toy.job("fedhenn", *SMALL, *flags)) for flags in (often, never)
    )
    for part in ("state", "memory", "weights"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part


def test_procrustes_wants_one_architecture():
    with pytest.raises(
        ConfigError, match="fedhenn needs one width for Procrustes, but is heterogeneous"
    ):
        toy.job("fedhenn", "--algorithm.distance", "procrustes")


# Hidden kernels

KERNELS = (
    *("--rounds", "2", "--algorithm.upload", "kernel", "--algorithm.mean_over", "cohort"),
    *("--algorithm.eta0", "0.1"),
)


def test_kernels_are_averaged_without_being_seen():
    """The server needs only their mean, so that single ones may be hidden from it."""
    plain = toy.run(Serial(), toy.job("fedhenn", *KERNELS))
    far = (
        *("--privacy.by", "central", "--privacy.clip", "1e6", "--selection.by", "uniform"),
        *("--privacy.neighbours", "replace"),
    )
    hidden = toy.run(Serial(), toy.job("fedhenn", *KERNELS, *far))
    for k, weights in plain.weights.items():
        assert weights == pytest.approx(hidden.weights[k], abs=1e-4)
