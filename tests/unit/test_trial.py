"""Bytes of a round that are measured on a trial."""

import numpy as np
import pytest
import torch

from hpcfed.algorithms import trial
from hpcfed.algorithms.asynchronous.fedasync import FedAsync
from hpcfed.comm import Serial
from hpcfed.config.architectures import MODELS, Entry
from hpcfed.config.load import load
from tests.contract import toy

MILLION = (
    *("--algorithm.name", "fedasync", "--data.name", "synthetic", "--clients", "1000000"),
    *("--data.partition", "natural", "--data.examples", "20"),
    *("--models.mix", "logistic", "--participation", "1e-6"),
)


@pytest.fixture
def fed():
    return toy.start(Serial(), toy.job("fedproto", "--models.mix", "mlp,cnn")).fed


def test_a_trial_leaves_no_trace_in_the_federation_or_in_global_generators(fed):
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    trial.measure(fed).traffic(3)
    assert [*fed.store] == [] and not fed.tallies and not fed.store.skeletons
    after = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    assert toy.differences(before, after) == []


def test_the_bytes_of_other_numbers_of_classes_follow_if_each_class_costs_the_same():
    measured = {1: (64, 20, 10), 4: (64, 80, 40), 2: (64, 40, 20)}
    assert trial.on_line(measured, 3) == (64, 60, 30)
    assert trial.on_line({**measured, 2: (64, 44, 20)}, 3) is None
    assert trial.on_line({**measured, 2: (64, 40, 24)}, 3) is None
    assert (
        trial.on_line({1: (64, 20, 10), 4: (64, 80, 40)}, 3) is None
    )  # two points are always on a line


def test_clients_of_one_architecture_and_number_of_classes_are_measured_once(fed, monkeypatch):
    measured = []
    perform = trial.perform
    monkeypatch.setattr(trial, "perform", lambda fed: measured.append(fed.K) or perform(fed))
    for _ in range(2):
        for k in range(6):
            fed.job.algorithm.traffic(fed, k)
    # those with the fewest and the most classes of both architectures; then client 2, which has
    # three, beside one of the other architecture
    assert measured == [4, 2]


@pytest.mark.parametrize(
    ("method", "flags", "whose"),
    [
        ("fedavg", (), "what is sent"),
        ("fedavg", ("--compression.by", "top-k"), "a model"),  # decoded, though less is sent
        ("scaffold", (), "what is sent"),  # a model and a control variate
        ("dsgd", (), "a model"),  # one upload, though it is sent to each neighbour
    ],
)
def test_an_upload_takes_memory_once_and_decoded(method, flags, whose):
    fed = toy.start(Serial(), toy.job(method, "--models.mix", "mlp", *flags)).fed
    measured = trial.measure(fed)
    expected = {"what is sent": measured.traffic(0)[1], "a model": fed.shapes().nbytes}
    assert measured.upload_memory(0) == expected[whose] > 0


def test_an_upload_of_as_many_values_as_examples_takes_memory_for_all_of_them(monkeypatch):
    small = Entry("tests.contract.toy:small", "of the tests", least=8, stem=True)
    monkeypatch.setitem(MODELS, "small", small)
    fed = toy.start(Serial(), toy.job("fedgkt")).fed  # a trial has a few examples
    assert trial.measure(fed).upload_memory(0) == fed.job.algorithm.traffic(fed, 0)[1]


def test_a_run_that_diverges_is_measured_all_the_same(monkeypatch):
    flags = ("--models.mix", "mlp", "--local.optimiser", "sgd", "--local.lr", "1e39")
    fed = toy.start(Serial(), toy.job("fedasync", *flags)).fed  # measures before its first round
    usual = toy.start(Serial(), toy.job("fedasync", "--models.mix", "mlp")).fed
    assert trial.measure(fed).traffic(0) == trial.measure(usual).traffic(0)
    monkeypatch.setattr(FedAsync, "loss", lambda *_: torch.tensor(torch.nan, requires_grad=True))
    down, up = trial.Measured(fed).traffic(0)
    assert (down, up) == (trial.measure(usual).traffic(0)[0], 0)


def test_a_million_clients_are_measured_by_one_of_each_architecture(monkeypatch):
    measured = []
    perform = trial.perform
    monkeypatch.setattr(trial, "perform", lambda fed: measured.append(fed.K) or perform(fed))
    rounds = toy.start(Serial(), load([*MILLION], environ={}))
    fed = rounds.fed
    assert {rounds.algorithm.traffic(fed, k) for k in (0, 7, 999_999)} == {(2440, 2440)}
    assert measured == [2] and len(fed.clients.objects) <= 2
