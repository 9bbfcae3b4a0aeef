"""Local differential privacy: each client adds Gaussian noise to what it sends.

A client's upload, of norm <= C after clipping, is replaced by any other one, which moves it by up
to 2 C. So its noise has standard deviation z * 2 C, and the server need not be trusted. Each upload
of a client is a release of its own, and nothing is amplified by sampling: who sends is known. With
n clients the noise of a mean has standard deviation z * 2 C / sqrt(n).

Where values have weights of their own, one for each class say, weight * value and weight get noise,
of classes without examples too. The client sends their quotient with the noisy weight, 0 if that is
negative, and the server's means are quotients of the sums as without noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params, Term
from hpcfed.core.payload import LEAVES, map_tensors, tensors
from hpcfed.federation.transforms.bounded import (
    Completing,
    difference,
    scale,
    scale_of_counts,
    shrink,
    square,
    valid,
)
from hpcfed.federation.upload import Upload

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.privacy import Privacy
    from hpcfed.federation.federation import Federation

LEAST = 1e-6  # probability of a class after noise


class LocalNoise(Completing):
    """Clips each upload and adds noise to it."""

    def __init__(self, privacy: Privacy) -> None:
        assert privacy.clip is not None
        self.clip, self.layers = privacy.clip, privacy.clipping == "layers"
        self.count_scale = privacy.count_scale

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        for part in upload.parts.values():
            check_covered(fed, client, part)
        # what the server does not know yet is nan
        references = {
            name: old and old.map(lambda value: torch.where(value.isnan(), 0, value))
            for name, old in upload.relative_to.items()
        }
        upload = upload.with_references(references)
        updates = self.complete(fed, difference(upload))
        squares = [s for part in updates.parts.values() for s in self._squares(part)]
        factors = list(shrink(dict(enumerate(squares)), self.clip, self.layers).values())
        z = fed.noise_multiplier
        if not z and all(f == 1 for f in factors):
            return upload
        key = fed.moment, client.id, fed.replay.streams
        noise = Noise(2 * self.clip * z, rng.stream(fed.seed, "privacy", *key), factors)
        parts = {}
        for name, part in updates.parts.items():
            if not isinstance(part, Mean):
                parts[name] = map_tensors(part, noise.value)
                continue
            old = upload.relative_to.get(name) if name in updates.updates else None
            terms = (noise.term(term, old, self._scale(term)) for term in part.terms)
            parts[name] = Mean(tuple(terms))
        return upload.changed(parts)

    def _scale(self, term: Term) -> float:
        return scale_of_counts(self.count_scale, self.clip, term)

    def _squares(self, part: Any) -> list[float]:
        """Return the sum of squares of each tensor of a part."""
        if isinstance(part, Mean):
            return [square(t, name, self._scale(t)) for t in part.terms for name in t.value]
        return [float(torch.as_tensor(v).double().square().sum()) for _, v in tensors(part)]


class Noise:
    """Scales the tensors of one upload, in their order, and adds noise.

    std: of the noise.  factors: of each tensor.
    """

    def __init__(self, std: float, g: np.random.Generator, factors: list[float]) -> None:
        self._std, self._g, self._factors = std, g, iter(factors)

    def value(self, value: Tensor) -> Tensor:
        """Return a tensor with noise; of probabilities it makes probabilities again."""
        noisy = self._noisy(scale(value.detach(), next(self._factors)), self._std)
        if noisy is value or not is_simplex(value):
            return noisy
        positive = noisy.clamp(min=LEAST)
        return positive / positive.sum(-1, keepdim=True)

    def term(self, term: Term, old: Params | None, count_scale: float) -> Term:
        """Return a term with noise.  old: the values of which the term has the changes."""
        weights = term.weight if isinstance(term.weight, Params) else None
        values, noisy = {}, {}
        for name, value in term.value.items():
            if weights is None:
                values[name] = self.value(value)
            else:
                weight, by = weights[name].detach().double(), next(self._factors)
                total = self._noisy(value.detach().double() * weight * by, self._std)
                count = self._noisy(weight * by, self._std / count_scale).clamp(min=0)
                present = count > 0
                quotient = torch.where(present, total / torch.where(present, count, 1), 0)
                values[name] = quotient.to(value.dtype)
                noisy[name] = count.to(weights[name].dtype)
            if old is not None:
                values[name] = valid(name, values[name] + old[name], old[name])
        return term._replace(
            value=Params(values), weight=term.weight if weights is None else Params(noisy)
        )

    def _noisy(self, value: Tensor, std: float) -> Tensor:
        if not std:
            return value
        noise = torch.from_numpy(np.asarray(std * self._g.standard_normal(tuple(value.shape))))
        return (value.double() + noise.to(value.device)).to(value.dtype)


def is_simplex(value: Tensor) -> bool:
    """Return whether each row of a matrix is a distribution over classes."""
    if value.dim() != 2 or value.shape[1] < 2 or not len(value):
        return False
    return bool(value.min() >= 0) and bool(((value.double().sum(1) - 1).abs() < 1e-3).all())


def check_covered(fed: Federation, client: Client, part: Any) -> None:
    """Raise ConfigError for a part that noise does not cover: whole numbers, and plain ones."""
    name = fed.job.algorithm.name
    if isinstance(part, Mean):
        for weight in (term.weight for term in part.terms):
            if not isinstance(weight, Params) and weight != 1:
                raise ConfigError(
                    f"privacy.by = 'local': {name}: a client sends its weight, {weight:g}, which "
                    f"no noise hides; set algorithm.weighting = 'uniform', or take another method"
                )
    integers = [v for _, v in tensors(part) if not torch.as_tensor(v).is_floating_point()]
    if integers or plain(part):
        raise ConfigError(
            f"privacy.by = 'local': the clients of {name} send whole or plain numbers, for which "
            f"no noise is defined; take another method, such as fedavg"
        )


def plain(part: Any) -> bool:
    """Return whether a part holds numbers that are no tensors."""
    if isinstance(part, dict):
        return any(map(plain, part.values()))
    if isinstance(part, list | tuple):
        return any(map(plain, part))
    return not isinstance(part, (Mean, *LEAVES)) and part is not None
