"""The decoder of FedKTL's server: from latent vectors to images.

It has the weights of a generator from a file, or the mean and the principal components of public
images.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hpcfed import ConfigError, Federation, Params
from hpcfed.algorithms.data_free.generators import Generator, example_shape
from hpcfed.models import pretrained
from hpcfed.training.infer import FEW


def principal_components(fed: Federation, latent: int) -> Params:
    """Return a linear decoder: the mean of the public images, and their principal components.

    basis: [D, values of an image], each component times the standard deviation along it.
    """
    # of all images they take seconds, and a trial needs shapes alone
    n = min(len(fed.public), FEW) if fed.trial else len(fed.public)
    x = fed.prepare(fed.public.batch(np.arange(n))[0]).flatten(1).double()
    most = min(n - 1, x.shape[1])
    if most < latent and not fed.trial:
        raise ConfigError(
            f"fedktl: algorithm.latent = {latent}, but {n} public images of {x.shape[1]} values "
            f"have at most {most} principal components\n  set algorithm.latent = {most} or less, "
            f"or more data.public"
        )
    mean = x.mean(0)
    _, spread, directions = torch.linalg.svd(x - mean, full_matrices=False)
    directions, spread = directions[:latent], spread[:latent] / math.sqrt(max(n - 1, 1))
    # whose sign is arbitrary: the largest value is positive
    peak = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    basis = spread[:, None] * peak.sign() * directions
    basis = F.pad(basis, (0, 0, 0, latent - len(basis)))  # in a trial
    return Params(mean=mean.float(), basis=basis.float())


def read(path: str, network: Generator) -> Params:
    """Return the weights of a generator from a file, a state dict.

    network: a generator of this size.  Raises ConfigError for another file.
    """
    weights, where = network.initial(), "algorithm.generator"
    tensors = pretrained.read(pretrained.existing(path, where, "'public' or 'untrained'"), where)
    for name, value in weights.items():
        shape = list(tensors[name].shape) if name in tensors else None
        if shape != list(value.shape):
            what = f"has shape {shape}" if shape else "is not in it"
            raise ConfigError(
                f"{where}: {path}: {name} {what}, but the generator of these examples with "
                f"algorithm.latent = {network.size} has shape "
                f"{list(value.shape)}\n  give the state dict of "
                f"hpcfed.algorithms.data_free.generators.{type(network.module).__name__}"
            )
        if not tensors[name].isfinite().all():
            raise ConfigError(f"{where}: {path}: {name} has values that are nan or infinite")
    return Params({n: tensors[n].to(v.device, v.dtype) for n, v in weights.items()})


def decode(fed: Federation, decoder: Params, latent: Tensor) -> Tensor:
    """Return the images of latent vectors, [n, *shape], as models take them."""
    if "basis" in decoder:
        return (decoder["mean"] + latent @ decoder["basis"]).view(-1, *example_shape(fed))
    return Generator(fed, latent.shape[1]).decode(decoder, latent)
