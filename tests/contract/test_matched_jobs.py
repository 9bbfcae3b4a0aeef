"""What the matched job of a method with a loss or examples of its own computes."""

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.algorithms import load as algorithm
from hpcfed.comm import Serial
from hpcfed.config.load import Given, load
from hpcfed.core.params import Params
from hpcfed.launch.matched import matched_job
from tests.contract import toy
from tests.contract.test_equalities import near

ALL = ("--participation", "1", "--rounds", "3")
ONE = (*ALL, "--clients", "1", "--data.train_limit", "30", "--models.mix", "small")
KEEPERS = [
    name for name in ALGORITHMS if algorithm(name)().alone.get("algorithm.name", name) != "local"
]
OTHER, OBSERVED = 5, 3  # clients


def matched(job):
    """The matched job of a toy job."""
    return load([], environ={}, arguments=Given(job=matched_job(job)))


def outcome(job, disturb=False):
    """What three rounds compute; if disturbed, one client's weights are others after the first."""
    rounds = toy.start(Serial(), job)
    rows = [rounds.step()[0]]
    if disturb:
        client = rounds.fed.clients[OTHER]
        client.load(client.params() * 0.5)
    rows += [rounds.step()[0], rounds.step()[0]]
    return toy.outcome(rounds, rows)


def test_methods_with_a_loss_models_or_examples_of_their_own_keep_them():
    names = {"fedclassavg", "fedktl", "fedmd", "fccl", "fml", "fedkd", "fedkemf", "fedtype"}
    assert names < set(KEEPERS)


@pytest.mark.parametrize("name", KEEPERS)
def test_a_client_of_a_matched_job_does_not_depend_on_the_others(name):
    job = matched(toy.job(name, *ALL))
    usual, disturbed = outcome(job), outcome(job, disturb=True)
    for part in ("weights", "memory"):
        observed = [getattr(one, part)[OBSERVED] for one in (usual, disturbed)]
        assert toy.differences(*observed) == [], part
        others = [getattr(one, part)[OTHER] for one in (usual, disturbed)]
        assert part == "memory" or toy.differences(*others)
    if name != "fccl":  # whose clients send logits that nobody learns from
        assert not usual.column("up").any() and not usual.column("down").any()


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("fedkemf", ("--algorithm.server_epochs", "0")),
        ("fedtype", ()),
        ("fml", ()),
        ("fedmrl", ()),
        ("fccl", ("--algorithm.own_entry", "excluded")),
    ],
)
def test_a_method_of_one_client_is_its_matched_job_to_the_bit(name, flags):
    job = toy.job(name, *ONE, *flags)
    ours, theirs = outcome(job), outcome(matched(job))
    for part in ("weights", "memory", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    for column in ("train_loss", "accuracy", "epochs"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_fedkd_of_one_client_is_its_matched_job_but_for_the_rounding_of_factors():
    full_rank = ("--algorithm.energy_start", "1", "--algorithm.energy_end", "1")
    job = toy.job("fedkd", *ONE, "--models.mix", "mlp", *full_rank)
    ours, theirs = (Params(w=outcome(one).weights[0]) for one in (job, matched(job)))
    assert near(ours, theirs, 1e-4)


def test_fedmds_clients_learn_the_public_labels_alone_too():
    job = matched(toy.job("fedmd", *ALL))
    rounds = toy.start(Serial(), job)
    rounds.step()
    assert all(client.memory["transferred"] == 1 for client in rounds.fed.clients.values())
