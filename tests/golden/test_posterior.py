"""FedBE's distributions, its sharpening and its average by hand."""

import pytest
import torch

from hpcfed.algorithms.bayesian import posterior
from hpcfed.algorithms.bayesian.fedbe import sharpen
from hpcfed.comm import Serial
from hpcfed.core.params import Mean, Params
from hpcfed.federation.federation import Federation
from hpcfed.training.server import Average
from tests.contract import toy


@pytest.fixture(scope="module")
def fed() -> Federation:
    return toy.start(Serial(), toy.job("fedbe", "--models.mix", "mlp")).fed


def at(*values: float) -> Params:
    return Params(w=torch.tensor(values))


SENT = {0: Mean.of(at(0.0, 1.0), 3.0), 1: Mean.of(at(4.0, 1.0), 1.0)}


def test_the_gaussian_has_the_clients_weighted_mean_and_variance(fed: Federation):
    """Mean 1 and variance (3 * 1 + 1 * 9) / 4 = 3 of 0 three times and 4 once."""
    mean, variance = posterior.gaussian(fed, SENT, at(9.0, 9.0))
    assert mean["w"].tolist() == [1, 1] and variance["w"].tolist() == [3, 0]


def test_directions_have_length_one_and_equal_weights(fed: Federation):
    """Changes (3, 4) and (0, -1): directions (.6, .8) and (0, -1), mean length 3."""
    sent = {0: Mean.of(at(4.0, 5.0), 7.0), 1: Mean.of(at(1.0, 0.0), 1.0)}
    mean, variance = posterior.directions(fed, sent, at(1.0, 1.0))
    assert mean["w"].tolist() == pytest.approx([1 + 3 * 0.3, 1 - 3 * 0.1])
    assert variance["w"].tolist() == pytest.approx([9 * 0.09, 9 * 0.81])


def test_samples_without_variance_are_the_mean(fed: Federation):
    mean, variance = at(1.0, 2.0), at(3.0, 4.0)
    samples = [
        posterior.draw(fed, mean, variance, scale, 0, i) for scale in (0.0, 1.0) for i in (0, 1)
    ]
    assert torch.equal(samples[0]["w"], mean["w"]) and torch.equal(samples[1]["w"], mean["w"])
    assert not torch.equal(samples[2]["w"], samples[3]["w"])


def test_a_gaussian_sample_is_as_far_from_the_mean_as_it_should_be(fed: Federation):
    mean, variance = Params(w=torch.zeros(20000)), Params(w=torch.full((20000,), 4.0))
    sample = posterior.draw(fed, mean, variance, 0.25, 0, 0)["w"]
    assert sample.mean().item() == pytest.approx(0, abs=0.03)
    assert sample.std().item() == pytest.approx(0.25 * 2, abs=0.01)  # scale * sqrt(variance)


def test_the_authors_draw_with_a_tenth_of_the_standard_deviation_of_directions():
    job = toy.given("fedbe", "--models.mix", "mlp", "--preset", "authors")
    assert job.algorithm.posterior == "directions" and job.algorithm.std_scale == 0.1


def test_mixtures_lie_between_the_clients_and_differ(fed: Federation):
    mixtures = posterior.mixtures(fed, SENT, at(0.0, 0.0), 1.0, 0, 3)
    values = [model["w"].tolist() for model in mixtures]
    assert all(0 <= v[0] <= 4 and v[1] == pytest.approx(1) for v in values)
    assert len({v[0] for v in values}) == 3


def test_sharpening_squares_probabilities_at_one_half():
    p = torch.tensor([[0.6, 0.4], [1.0, 0.0]])
    assert sharpen(p, 0.5)[0].tolist() == pytest.approx([0.36 / 0.52, 0.16 / 0.52])
    assert sharpen(p, 1.0).tolist() == [pytest.approx([0.6, 0.4]), pytest.approx([1, 0], abs=1e-7)]


def test_swa_averages_parameters_after_its_start_and_keeps_the_last_statistics():
    average = Average(lambda name: name == "w", start=2, every=2)
    for step in range(1, 7):  # models after steps 4 and 6
        assert not average.ends(
            Params(w=torch.tensor(float(step)), s=torch.tensor(float(step))), step, step == 6
        )
    assert average.models == 2 and (average.best["w"], average.best["s"]) == (5, 6)


def test_swa_that_never_begins_ends_with_the_last_model():
    average = Average(lambda name: True, start=9, every=1)
    average.ends(at(3.0), 1, True)
    assert average.models == 0 and average.best["w"].item() == 3
