"""Zero-shot augmentation and learning by synthetic data: what they become in neutral settings, and
their steps by hand.
"""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hpcfed.algorithms.data_free import fedsynth, inversion, zeroshot
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import prepare, restore
from hpcfed.engine.rounds import Rounds
from hpcfed.training.local import sgd
from hpcfed.training.losses import moment_distance
from tests.contract import toy
from tests.contract.test_equalities import run
from tests.threads import spmd

MLP = ("--models.mix", "mlp")
SERVER = ("--algorithm.at", "server")


def begun(method: str, *flags: str) -> Rounds:
    rounds = toy.start(Serial(), toy.job(method, *flags))
    rounds.fed.participants.open(0)
    return rounds


# Zero-shot augmentation


def test_without_made_examples_it_is_fedavg():
    assert toy.differences(run("zeroshot", "--algorithm.samples", "0"), run("fedavg")) == []


@pytest.mark.parametrize("at", [(), SERVER, (*SERVER, "--algorithm.source", "mean")])
def test_until_examples_are_made_it_is_fedavg_but_for_a_bit_a_class(at: tuple[str, ...]):
    ours, theirs = run("zeroshot", "--algorithm.after", "9", *at), run("fedavg")
    for part in ("state", "weights", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    more = (ours.column("up") - theirs.column("up"))[theirs.column("cohort") > 0]
    assert set(more) == ({1} if at == SERVER else {0})  # 4 classes fit into a byte
    assert (ours.column("down") == theirs.column("down")).all()


def test_a_client_makes_examples_that_balance_its_classes_up_to_the_limit():
    assert zeroshot.missing(np.array([3, 0, 1, 3]), 9).tolist() == [1, 1, 1, 2, 2]
    assert zeroshot.missing(np.array([3, 0, 1, 3]), 2).tolist() == [1, 1, 2, 2]
    assert zeroshot.missing(np.array([5, 5, 5, 5]), 9).tolist() == []


def test_a_balanced_client_adds_nothing(monkeypatch: pytest.MonkeyPatch):
    rounds = begun("zeroshot", "--algorithm.after", "0", *MLP)
    fed, method = rounds.fed, rounds.algorithm
    monkeypatch.setitem(fed.__dict__, "label_counts", [np.full(4, 8)] * 6)
    upload = method.local(fed, fed.clients[5], rounds.state, 0)
    theirs = begun("fedavg", *MLP)
    want = theirs.algorithm.local(theirs.fed, theirs.fed.clients[5], theirs.state, 0)
    assert toy.differences(upload.value.terms[0].value, want.value.terms[0].value) == []


def test_a_batch_with_exactly_the_stored_moments_has_distance_0_and_others_by_hand():
    x = torch.tensor([[1.0, 0.0], [3.0, 4.0]])  # means 2 and 2, variances 2 and 8
    assert moment_distance(x, torch.tensor([2.0, 2.0]), torch.tensor([2.0, 8.0])) == 0
    far = moment_distance(x, torch.tensor([2.0, 1.0]), torch.tensor([8.0, 8.0]), eps=0.0)
    assert far.item() == pytest.approx(1 + 2)  # (2 - 1)^2, (sqrt 2 - sqrt 8)^2
    norm = nn.BatchNorm2d(3, momentum=1.0)
    x = torch.randn(4, 3, 5, 5)
    norm(x)
    with inversion.watch_moments(norm.eval()) as moments:
        norm(x)
        norm(x + 1)
    assert moments[0].item() < 1e-10 < 2.9 < moments[1].item() < 3.1
    norm(x)
    assert len(moments) == 2  # nothing is watched any more


@pytest.mark.parametrize("by", ["examples", "generator"])
def test_made_examples_are_of_the_wanted_classes_and_leave_the_model_as_it_is(by: str):
    rounds = begun("zeroshot")
    fed, model = rounds.fed, rounds.state
    before, labels = model.clone(), torch.tensor([0, 0, 3, 3])
    module = fed.module("small")

    def make(steps: int, moments: float) -> tuple[list[int], float]:
        how = inversion.Inversion(steps, 0.1 if by == "examples" else 0.003, moments, 0.0, by)
        x = how.examples(fed, "small", model, labels)
        assert x.shape == (4, *toy.SHAPE)
        with torch.no_grad(), inversion.watch_moments(module.model.eval()) as captured_moments:
            logits = torch.func.functional_call(module.model, dict(model), (x,))
        return logits.argmax(1).tolist(), float(sum(captured_moments))

    assert make(150, 0.0)[0] == labels.tolist()
    assert make(50, 1.0)[1] < 0.8 * make(0, 1.0)[1]
    assert toy.differences(before, model) == []


def test_made_examples_are_stored_as_the_data_are():
    rounds = begun("zeroshot")
    fed = rounds.fed
    stored = torch.arange(64, dtype=torch.uint8).view(1, *toy.SHAPE)
    x = prepare(stored, fed.data.mean, fed.data.std)
    assert torch.equal(restore(x, fed.data.mean, fed.data.std, torch.uint8), stored)
    examples = zeroshot.as_stored(fed, fed.clients[5].train, x, np.array([2]))
    assert examples.x.dtype == np.uint8 and examples.labels.tolist() == [2]
    assert torch.equal(examples.batch(np.array([0]))[0], stored)
    assert restore(x.abs() * 99, fed.data.mean, fed.data.std, torch.uint8).max() == 255


def test_a_client_trains_on_its_own_examples_and_on_the_made_ones():
    rounds = begun("zeroshot", "--algorithm.after", "0", *MLP)
    fed, method = rounds.fed, rounds.algorithm
    n_missing = len(zeroshot.missing(fed.label_counts[1], method.samples))
    method.local(fed, fed.clients[1], rounds.state, 0)  # of a single class
    assert (
        n_missing == 3 * 2
        and fed.tallies[1].examples == 9 + n_missing
        and fed.tallies[1].epochs == 1
    )


def test_ranks_do_not_matter_if_the_server_makes_examples():
    for source in ("each", "mean"):
        job = toy.job("zeroshot", *SERVER, "--algorithm.source", source)
        want = toy.run(Serial(), job)
        assert toy.differences(want.state, run("fedavg").state) != []
        for got in spmd(3, lambda comm, job=job: toy.run(comm, job)):
            assert toy.differences(got, want) == []


# Learning by synthetic data

ONE_STEP = (
    *("--local.optimiser", "sgd", "--local.lr", "0.5", "--local.batch", "64", "--local.epochs"),
    *("1", *MLP),
)


def test_texts_are_not_made():
    from tests.contract.test_methods_on_text import job

    for method in ("zeroshot", "fedsynth"):
        with pytest.raises(ConfigError, match=f"{method} makes examples as values, but .* texts"):
            toy.start(Serial(), job(method, "--models.mix", "lstm-1"))


def sent_for(rounds: Rounds, k: int) -> dict:
    """What client k would send if its synthetic examples were its own, after its training."""
    fed, client, w = rounds.fed, rounds.fed.clients[k], rounds.state.model
    client.load(w)
    sgd(fed, client, 0, partial(rounds.algorithm.loss, client, w))
    x, y = client.train.batch(np.arange(client.n))
    return {
        "x": fed.prepare(x),
        "labels": F.one_hot(y, 4).float(),
        "norm": fedsynth.length(w - client.params()),
        "statistics": {},
    }


def test_real_examples_rebuild_a_full_batch_step_exactly():
    rounds = begun("fedsynth", *ONE_STEP)
    sent, client = sent_for(rounds, 5), rounds.fed.clients[5]
    model = fedsynth.rebuild(rounds.fed, "mlp", rounds.state.model, sent)
    for name, value in client.params().items():
        assert torch.allclose(model[name], value, atol=1e-6), name
    assert any(not torch.equal(v, rounds.state.model[n]) for n, v in model.items())


def test_a_rebuilt_update_has_the_length_of_the_real_one_and_none_of_a_gradient_of_0():
    rounds = begun("fedsynth", *MLP)
    fed, w = rounds.fed, rounds.state.model
    sent = {
        "x": torch.randn(3, *toy.SHAPE),
        "labels": F.softmax(torch.randn(3, 4), 1),
        "norm": torch.tensor(2.5),
        "statistics": {},
    }
    error = w - fedsynth.rebuild(fed, "mlp", w, sent)
    assert float(fedsynth.length(error)) == pytest.approx(2.5, rel=1e-4)
    still = w.clone().map(torch.zeros_like)  # and labels that such a model gives
    sent["labels"] = torch.full((3, 4), 0.25)
    assert toy.differences(fedsynth.rebuild(fed, "mlp", still, sent), still) == []


def test_more_passes_never_score_worse_and_come_nearer_to_the_update():
    def found(passes: int) -> tuple[float, float]:
        flags = ("--algorithm.passes", str(passes), "--algorithm.steps", "10", *ONE_STEP)
        rounds = begun("fedsynth", *flags)
        fed, client, w = rounds.fed, rounds.fed.clients[5], rounds.state.model
        sent_for(rounds, 5)
        weights = client.params()
        _, model = rounds.algorithm.imitate(fed, client, w, weights, 0)
        near = float(fedsynth.cosine(w - model, w - weights))
        return rounds.algorithm.score(fed, client, model), near

    scores, cosines = zip(*map(found, (1, 2, 6)), strict=True)
    assert scores[0] >= scores[1] >= scores[2] and cosines[2] > max(0.5, cosines[0])


def test_bytes_are_those_of_examples_labels_norm_cosine_and_statistics():
    rounds = begun("fedsynth")  # of a model with 2 * (8 + 16) statistics
    down, up = rounds.algorithm.traffic(rounds.fed, 0)
    assert down == rounds.fed.initial().nbytes
    assert up == 4 * (10 * (64 + 4) + 2) + 4 * 2 * (8 + 16)


def test_a_record_says_how_near_the_updates_are():
    rows = run("fedsynth").rows
    assert all(-1 <= row["rounds/cosine_updates"] <= 1 for row in rows)
