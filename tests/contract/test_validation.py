"""evaluate.validation: what clients hold out of their own training examples to choose values by."""

import numpy as np
import pytest

from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.data.partition_file import Partition
from hpcfed.data.sampling import hold_out
from hpcfed.engine.decide import world
from tests.contract import toy
from tests.threads import spmd

VALIDATION = ("--evaluate.validation", "0.25")
NAMES = ("clients/accuracy_validation", "clients/loss_validation")


def test_validation_examples_are_disjoint_from_training_and_in_proportion():
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
    part = np.arange(8)
    train, validation = hold_out(labels, part, 0.5, rng.stream(0, "validation", 0))
    assert sorted([*train, *validation]) == part.tolist()
    assert np.bincount(labels[validation]).tolist() == [2, 2]
    assert [len(p) for p in hold_out(labels, part[:1], 0.9, rng.stream(0, "v"))] == [1, 0]


def test_of_equally_frequent_classes_each_is_held_out_by_some_client():
    labels = np.repeat(np.arange(27), 3)
    held_out = [
        set(labels[hold_out(labels, np.arange(81), 0.2, rng.stream(0, "validation", k))[1]])
        for k in range(8)
    ]
    assert all(len(classes) == 16 for classes in held_out)
    assert set.union(*held_out) == set(range(27))


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_ranks_and_resumption_do_not_matter_for_its_columns(method, tmp_path):
    job = toy.job(method, *VALIDATION)
    want = toy.run(Serial(), job)
    for row in want.rows:
        assert np.isfinite(row["clients/accuracy_validation"]).any()
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []
    toy.run(Serial(), job, rounds=2, save=tmp_path)
    resumed = toy.run(Serial(), job, resume=tmp_path)
    assert toy.differences(resumed.rows[-1], want.rows[-1]) == []


def test_clients_train_on_the_remaining_examples_and_tests_do_not_change():
    unsplit = toy.start(Serial(), toy.job("fedavg")).fed
    fed = toy.start(Serial(), toy.job("fedavg", *VALIDATION)).fed
    for k, client in fed.clients.items():
        n = unsplit.clients[k].n
        assert len(client.validation) == n // 4 and client.n == n - n // 4 == fed.sizes[k]
        assert not set(client.validation.rows) & set(client.train.rows)
        assert client.test.rows.tolist() == unsplit.clients[k].test.rows.tolist()


def test_a_pooled_accuracy_is_that_of_all_examples_together():
    row = toy.run(Serial(), toy.job("fedavg", *VALIDATION)).rows[-1]
    sizes = np.array(toy.SIZES) // 4
    scored = np.isfinite(row["clients/accuracy_validation"])
    right = np.rint(row["clients/accuracy_validation"][scored] * sizes[scored]).sum()
    assert row["rounds/accuracy_validation_pooled"] == right / sizes[scored].sum()
    assert not scored[0]  # a single example is kept to train on


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_client_without_test_examples_has_a_validation_score(method):
    """Client 5 of the toy; with `local`, also in rounds in which it does not train."""
    job = toy.job(method, *VALIDATION, "--evaluate.clients", "all")
    rows = toy.run(Serial(), job).rows
    assert not toy.TESTS[5] and not any(np.isfinite(row["clients/accuracy"][5]) for row in rows)
    trained = [bool(row["clients/examples"][5]) for row in rows]
    assert not all(trained) and any(trained)
    for row in rows:
        assert all(np.isfinite(row[name][5]) for name in NAMES)
    sizes, accuracy = np.array(toy.SIZES) // 4, rows[-1]["clients/accuracy_validation"]
    right = np.rint(accuracy * sizes)[1:].sum()  # client 0 holds nothing out
    assert rows[-1]["rounds/accuracy_validation_pooled"] == right / sizes.sum()


RECEIVED = (*VALIDATION, "--evaluate.validation_model", "received")


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_validation_of_the_received_model_scores_what_the_server_would_send_next(method):
    """By hand after the last round; what is trained stays as it was."""
    outcome = toy.run(Serial(), toy.job(method, *VALIDATION))
    going = toy.start(Serial(), toy.job(method, *RECEIVED))
    rows = [going.step()[0] for _ in range(3)]
    fed, accuracy = going.fed, rows[-1]["clients/accuracy_validation"]
    for k, client in fed.clients.items():
        if not client.validation:
            assert np.isnan(accuracy[k])
            continue
        with client.borrowed():
            going.algorithm.receive(client, going.state)
            client.model.eval()
            x, y = client.validation.batch(np.arange(len(client.validation)))
            right = (client.model(fed.prepare(x)).argmax(1) == y).double().mean()
        assert accuracy[k] == pytest.approx(right.item())
    assert toy.differences(going.state, outcome.state) == []
    for name in ("clients/accuracy", "clients/loss", "rounds/accuracy_pooled"):
        assert toy.differences(rows[-1][name], outcome.rows[-1][name]) == []
    losses = rows[-1]["clients/loss_validation"], outcome.rows[-1]["clients/loss_validation"]
    assert toy.differences(*losses)


def test_received_models_are_validated_with_the_same_bits_on_any_ranks():
    job = toy.job("fedavg", *RECEIVED, "--evaluate.received", "true")
    want = toy.run(Serial(), job)
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


def test_a_validation_model_without_validation_is_refused():
    with pytest.raises(ConfigError, match='validation_model = "received" has no effect'):
        toy.job("fedavg", "--evaluate.validation_model", "received")


def test_without_validation_its_columns_do_not_exist():
    assert not set(NAMES) & set(toy.run(Serial(), toy.job("fedavg"), rounds=1).rows[0])


def test_a_population_that_makes_its_examples_has_none_to_hold_out():
    with pytest.raises(ConfigError, match="the clients of synthetic make"):
        words = ("--data.name", "synthetic", "--data.partition", "natural", "--clients", "6")
        toy.job("fedavg", *VALIDATION, *words, "--models.mix", "logistic")


def test_a_saved_partition_gives_the_same_run_again(tmp_path):
    flags = ("--models.mix", "mlp", "--rounds", "1", "--clients", "4", *VALIDATION)
    first = toy.job("fedavg", *flags)
    facts = world(first, Serial())
    path = tmp_path / "partition.h5"
    facts.partition.save(path, "", facts.held_out)
    assert sum(Partition.load(path).sizes) == sum(facts.partition.sizes)  # what clients train on
    again = toy.job("fedavg", *flags, "--data.partition_file", str(path))
    assert toy.differences(toy.run(Serial(), again), toy.run(Serial(), first)) == []
