"""What attackers that know the others' uploads send, beside the formulas in ten lines of NumPy.

Nothing is trained: clients send vectors, which are new versions of what they received.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpcfed.comm import Comm, Serial
from hpcfed.config.attack import ATTACKS, TOGETHER, Attack
from hpcfed.core.params import Mean, Params
from hpcfed.federation.upload import Upload
from tests.threads import spmd
from tests.vectors import federation

BAD = (1, 4)
RECEIVED = np.float32([0.5, -0.25, 2.0])


def send(uploads: dict[int, Upload], comm: Comm | None = None, **settings) -> dict[int, Any]:
    """What the server gets of all clients, of which BAD attack."""
    attack = Attack(clients=BAD, **settings)
    job = SimpleNamespace(attack=attack, seed=0, clients=1 + max(uploads))
    fed = federation(comm or Serial(), job.clients)
    mine = {k: upload for k, upload in uploads.items() if k in fed.clients}
    received = ATTACKS[attack.by].load()(job).received(fed, mine)
    return {k: upload.value.terms[0].value for k, upload in fed.comm.gather(received).items()}


def of_vectors(updates: np.ndarray, comm: Comm | None = None, **settings) -> np.ndarray:
    """The updates that the server gets, [n, 3]."""
    reference = Params(w=torch.from_numpy(RECEIVED))
    uploads = {
        k: Upload(Mean.of(Params(w=torch.from_numpy(RECEIVED + x).float())), relative_to=reference)
        for k, x in enumerate(updates)
    }
    return np.stack([v["w"].numpy() - RECEIVED for v in send(uploads, comm, **settings).values()])


def updates(n: int = 9, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal([1.0, -2.0, 0.0], size=(n, 3))


def reached(honest: np.ndarray, direction: np.ndarray, in_sum: bool) -> np.ndarray:
    """The farthest point from the mean in this direction, by bisection as in the authors' code."""
    between = np.square(honest[:, None] - honest).sum(axis=-1)
    bound = between.sum(axis=1).max() if in_sum else between.max()
    low, high = 0.0, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        d = np.square(honest.mean(axis=0) + middle * direction - honest).sum(axis=1)
        low, high = (middle, high) if (d.sum() if in_sum else d.max()) <= bound else (low, middle)
    return honest.mean(axis=0) + low * direction


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("direction", ["std", "mean", "sign"])
@pytest.mark.parametrize("by", ["min-max", "min-sum"])
def test_updates_go_as_far_as_those_of_honest_clients_allow(by: str, direction: str, seed: int):
    x = updates(seed=seed)
    honest = np.delete(x, BAD, axis=0)
    m = honest.mean(axis=0)
    p = {"std": -honest.std(axis=0, ddof=1), "mean": -m / np.linalg.norm(m), "sign": -np.sign(m)}
    sent = of_vectors(x, by=by, direction=direction)
    assert sent[BAD[0]] == pytest.approx(reached(honest, p[direction], by == "min-sum"), abs=1e-4)
    assert np.array_equal(sent[BAD[0]], sent[BAD[1]])
    assert np.delete(sent, BAD, axis=0) == pytest.approx(honest, abs=1e-6)


def test_alie_and_ipm_send_what_their_formulas_say():
    x = updates(25)
    honest = np.delete(x, BAD, axis=0)
    m, s = honest.mean(axis=0), honest.std(axis=0, ddof=1)
    assert of_vectors(x, by="alie", scale=1.5)[1] == pytest.approx(m - 1.5 * s, abs=1e-5)
    assert of_vectors(x, by="ipm", scale=0.5)[1] == pytest.approx(-0.5 * m, abs=1e-5)


def test_one_minus_eps_of_a_fourth_is_left_of_the_mean_under_ipm():
    """Honest clients send 1; of eight clients two send -0.5: (6 - 1) / 8 = 0.625."""
    sent = of_vectors(np.ones((8, 3)), by="ipm", scale=0.5)
    assert sent.mean(axis=0) == pytest.approx([0.625] * 3)


def test_fang_sends_values_beyond_the_honest_extremes_on_the_wrong_side():
    for seed in range(5):
        x = updates(seed=seed)
        honest = np.delete(x, BAD, axis=0)
        low, high = honest.min(axis=0), honest.max(axis=0)
        for value, m, a, b in zip(
            of_vectors(x, by="fang")[1], honest.mean(axis=0), low, high, strict=True
        ):
            near = a if m > 0 else b
            far = near * 2 if (near > 0) != (m > 0) else near / 2
            assert min(near, far) - 1e-6 <= value <= max(near, far) + 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_fang_on_krum_goes_as_far_against_the_signs_of_the_mean_as_krum_chooses_it(seed: int):
    x = np.random.default_rng(seed).normal([0.1, -0.2, 0.05], size=(9, 3))
    honest, n = np.delete(x, BAD, axis=0), len(x)
    s = np.sign(honest.mean(axis=0))

    def choice(step: float) -> int:
        sent = np.concatenate([honest, np.tile(-step * s, (len(BAD), 1))])
        distances = np.sort(np.square(sent[:, None] - sent).sum(axis=-1), axis=1)
        return int(distances[:, 1 : n - len(BAD) - 1].sum(axis=1).argmin())

    sent = of_vectors(x, by="fang-krum")[1]
    step = float(np.abs(sent).max())
    assert sent == pytest.approx(-step * s, abs=1e-6)
    assert choice(step) >= len(honest) > choice(2 * step)
    # honest updates with one direction are nearer to one another than to any against it
    assert np.abs(of_vectors(updates(seed=seed), by="fang-krum")[1]).max() <= 1e-5


@pytest.mark.parametrize("clients", [BAD, (0, 2, 3)])
def test_a_round_without_honest_clients_or_without_attackers_is_as_it_was(clients: tuple[int, ...]):
    uploads = {k: Upload(Mean.of(Params(w=torch.ones(3) * k))) for k in clients}
    sent = send(uploads, by="ipm")
    assert all(torch.equal(sent[k]["w"], torch.ones(3) * k) for k in clients)


def test_alie_says_that_it_does_nothing_with_few_attackers(capsys):
    of_vectors(updates(10), by="alie")  # z = 0 for two of ten
    assert "set attack.scale" in capsys.readouterr().err


ROWS = {0: [0, 1], 1: [0, 2], 2: [0], 3: [1], 4: [2]}  # the classes of each client


def prototypes() -> dict[int, Upload]:
    """Class 2 is that of attackers only; nobody has sent any class so far."""
    unknown = Params(proto=torch.full((3, 2), torch.nan))
    return {
        k: Upload(
            Mean.of(
                Params(proto=torch.full((len(rows), 2), 1.0 + k)),
                at={"proto": (torch.tensor(rows),)},
            ),
            relative_to=unknown,
        )
        for k, rows in ROWS.items()
    }


@pytest.mark.parametrize("by", TOGETHER)
def test_what_only_attackers_have_stays_as_it_is(by: str):
    settings = {"scale": 0.5} if by in ("alie", "ipm") else {}
    sent, before = send(prototypes(), by=by, **settings), prototypes()
    assert torch.equal(sent[1]["proto"][1], before[1].value.terms[0].value["proto"][1])
    assert torch.equal(sent[4]["proto"], before[4].value.terms[0].value["proto"])
    assert not torch.equal(sent[1]["proto"][0], before[1].value.terms[0].value["proto"][0])
    if by == "ipm":  # clients 0 and 2 have class 0
        assert sent[1]["proto"][0].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("by", TOGETHER)
def test_ranks_do_not_change_a_bit(by: str):
    x = np.random.default_rng(3).standard_normal((9, 3))
    want, pieces = of_vectors(x, by=by), send(prototypes(), by=by)
    for ranks in (2, 5):
        for sent in spmd(ranks, lambda comm: of_vectors(x, comm, by=by)):
            assert np.array_equal(sent, want)
        for sent in spmd(ranks, lambda comm: send(prototypes(), comm, by=by)):
            assert all(torch.equal(sent[k]["proto"], pieces[k]["proto"]) for k in ROWS)
