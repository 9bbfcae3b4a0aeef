"""Distributions of models, fitted to the models that clients sent."""

from collections.abc import Mapping

import torch

from hpcfed import Federation, Mean, Params, rng

FLOOR = 1e-5  # least variance of directions
SMALL = 1e-12  # changes shorter than this have no direction


def gaussian(fed: Federation, sent: Mapping[int, Mean], keep: Params) -> tuple[Params, Params]:
    """Return the weighted mean and variance of each value over the clients' models; collective.

    sent: this rank's models.
    Chen and Chao, ICLR 2021.
    """
    mean = fed.mean(sent.items(), keep=keep)
    return mean, fed.mean(deviations(sent, mean), keep=keep * 0)


def directions(fed: Federation, sent: Mapping[int, Mean], keep: Params) -> tuple[Params, Params]:
    """Return the mean and variance of FedBE's public code, from directions of change; collective.

    A direction is a client's change from `keep`, tensor by tensor, divided by its length. All
    clients have equal weights. Mean and variance of the directions are scaled by the clients' mean
    length.
    """
    changes = {k: m.terms[0].value - keep for k, m in sent.items()}
    lengths = {k: c.map(lambda v: v.double().norm()) for k, c in changes.items()}
    units = {
        k: Params({n: v / lengths[k][n].clamp(min=SMALL).to(v.dtype) for n, v in c.items()})
        for k, c in changes.items()
    }
    alike = {k: Mean.of(unit) for k, unit in units.items()}
    zero = keep * 0
    mean = fed.mean(alike.items(), keep=zero)
    variance = fed.mean(deviations(alike, mean), keep=zero)
    length = fed.mean(
        ((k, Mean.of(v)) for k, v in lengths.items()),
        keep=zero.map(lambda v: v.double().sum()),
    )
    scale = {name: float(v) for name, v in length.items()}
    centre = Params({n: v + scale[n] * mean[n] for n, v in keep.items()})
    return centre, Params({n: v.clamp(min=FLOOR) * scale[n] ** 2 for n, v in variance.items()})


def deviations(sent: Mapping[int, Mean], mean: Params) -> list[tuple[int, Mean]]:
    """Return the squared deviations from the mean, with the weights of the models."""
    return [
        (k, Mean.of((m.terms[0].value - mean).map(lambda v: v.square()), m.terms[0].weight))
        for k, m in sent.items()
    ]


def draw(fed: Federation, mean: Params, variance: Params, scale: float, t: int, i: int) -> Params:
    """Draw sample i of round t from the Gaussian with this mean and variance.

    scale: factor of the standard deviation.
    The sample is the same on all ranks. Noise of a defence may have made a variance negative, which
    then counts as 0.
    """
    g = rng.torch_stream(fed.seed, "posterior", t, i)
    noise = {n: torch.randn(v.shape, generator=g).to(v) for n, v in mean.items()}
    std = variance.map(lambda v: v.clamp(min=0).sqrt())
    return Params({n: v + scale * std[n] * noise[n] for n, v in mean.items()})


def mixtures(
    fed: Federation, sent: Mapping[int, Mean], keep: Params, alpha: float, t: int, samples: int
) -> list[Params]:
    """Return means of the clients' models with Dirichlet weights times their own; collective.

    sent: this rank's models.
    Chen and Chao, ICLR 2021.
    """
    ids = sorted(fed.gather(dict.fromkeys(sent, 1)))
    models = []
    for i in range(samples):
        shares = rng.stream(fed.seed, "posterior", t, i).dirichlet([alpha] * len(ids))
        by_id = dict(zip(ids, shares.tolist(), strict=True))
        parts = (
            (k, Mean.of(m.terms[0].value, by_id[k] * m.terms[0].weight)) for k, m in sent.items()
        )
        models.append(fed.mean(parts, keep=keep))
    return models
