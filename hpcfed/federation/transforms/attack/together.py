"""Attacks of several clients together, which know what the honest clients of the round send.

All of them send the same: with m and s the mean and the standard deviation (n - 1) of the honest
updates of each value,

- ALIE: m - z s; z = Phi^-1((n - f - h) / (n - f)) with h = max(1, floor(n / 2) + 1 - f), so that h
  honest clients lie beyond it (Baruch et al., NeurIPS 2019, arXiv:1902.06156);
- IPM: -scale m (Xie et al., UAI 2019, arXiv:1903.03936);
- Fang: where m > 0 a value below all honest ones, else one above them, at most twice as far from 0,
  at random (Fang et al., USENIX Security 2020, arXiv:1911.11815, section 3.3, full knowledge);
- Fang on Krum: -l sign(m) with the largest l that Krum takes for the best update, found by halving
  a bound (section 3.2, theorem 1, full knowledge): the smallest sum of an honest update's distances
  to its n - f - 2 nearest honest ones over (n - 2 f - 1) sqrt(d), plus the greatest length of one
  over sqrt(d), for d values and f attackers among n clients; almost 0 if Krum takes none;
- min-max: m + g p with the largest g for which the distance to each honest update is at most the
  largest one between two of these; min-sum: for which the sum of squared distances is at most the
  largest sum of one of these (Shejwalkar and Houmansadr, NDSS 2021). p is the opposite of s, of m /
  ||m|| or of sign(m).

Each value is compared among the honest clients that send it, in tensors of one shape; what no
honest client sends, such as a class that only attackers have, stays as it is. Uploads are compared
as the server gets them: decoded, if they are compressed.

Deviations: g solves the quadratic equation, the authors' code approaches it by halving steps. The
authors' min-sum code takes the smallest sum. In Fang's attack on Krum the paper lets all attackers
but one lie near that one's vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpcfed.core import rng
from hpcfed.core.params import Params, Term
from hpcfed.federation.side_by_side import Block, SideBySide
from hpcfed.federation.transforms.attack.attackers import Attacking
from hpcfed.federation.transforms.comparison import gram, squared_distances
from hpcfed.federation.transforms.defence.krum import scores
from hpcfed.federation.transforms.values import (
    Value,
    added,
    cells,
    update_of,
    values_of,
    with_values,
)
from hpcfed.federation.upload import CohortTransform, Upload

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


SMALLEST = 1e-5  # factor at which Fang's attack on Krum gives up


class Together(Attacking, CohortTransform):
    """All attackers of a round send one vector, which is made of the honest updates."""

    def received(self, fed: Federation, uploads: dict[int, Upload]) -> dict[int, Upload]:
        honest, bad = count(fed, uploads, self)
        if not bad or not honest:
            return uploads
        values = {k: list(tensors_of(upload)) for k, upload in uploads.items()}
        of_honest = {k: of_client for k, of_client in values.items() if not self.acts(fed, k)}
        shapes = complete_shapes(fed, values)
        keep = Params({path: torch.zeros(shapes[path]) for path in complete_shapes(fed, of_honest)})
        if not keep:
            return uploads
        terms = [(k, term_of(of_client)) for k, of_client in of_honest.items()]
        side = SideBySide(fed, terms, keep, "value")
        flat = self.vector(fed, side, keep, honest, bad)
        for (path, start, stop), sent in side.each(is_sent, is_of_pieces):
            flat[path][start:stop][~sent] = np.nan
        vector = as_params(flat, keep)
        return {
            k: replaced(upload, values[k], vector) if self.acts(fed, k) else upload
            for k, upload in uploads.items()
        }

    def vector(
        self, fed: Federation, side: SideBySide, keep: Params, honest: int, bad: int
    ) -> dict[str, np.ndarray]:
        """Return the update that attackers send, flat by path; collective.

        side: the honest updates.  keep: zeros of the complete tensors.
        honest, bad: numbers of clients of the round.
        """
        parts = {path: np.zeros(value.numel(), np.float32) for path, value in keep.items()}

        def compute(block: Block) -> np.ndarray:
            if not block.entries:
                return np.zeros(block.values.shape[1])
            return self.of_block(fed, block, honest, bad)

        for (path, start, stop), values in side.each(compute):
            parts[path][start:stop] = values
        return parts

    def of_block(self, fed: Federation, block: Block, honest: int, bad: int) -> np.ndarray:
        """Return the attackers' values of a section, [m]."""
        raise NotImplementedError


class ALittleIsEnough(Together):
    """The mean, moved by as much as hides among the honest."""

    def of_block(self, fed: Federation, block: Block, honest: int, bad: int) -> np.ndarray:
        mean, std = moments(block)
        z = self.settings.scale
        if z is None and (z := hidden_deviations(honest + bad, bad)) <= 0:
            fed.warnings.say(
                "attack.by = 'alie': with as few attackers, or as few honest clients, as in this "
                "round its formula gives z <= 0: they send the mean of the honest clients, or what "
                "is opposite to an attack; set attack.scale, such as 1"
            )
        return mean - z * std


class InnerProduct(Together):
    """The reversed mean of the honest."""

    def of_block(self, fed: Federation, block: Block, honest: int, bad: int) -> np.ndarray:
        return -self.scale(0.1) * moments(block)[0]


class Fang(Together):
    """Values beyond those of the honest, on the wrong side."""

    def of_block(self, fed: Federation, block: Block, honest: int, bad: int) -> np.ndarray:
        present = block.weights > 0
        low = np.where(present, block.values, np.inf).min(axis=0)
        high = np.where(present, block.values, -np.inf).max(axis=0)
        g = rng.stream(fed.seed, "attack", fed.moment, fed.replay.streams, *map(str, block.section))
        u = 1 + g.random(len(low))
        below, above = np.where(low > 0, low / u, low * u), np.where(high > 0, high * u, high / u)
        result = np.where(moments(block)[0] > 0, below, above)
        return np.where(present.any(axis=0), result, 0.0)


class MinMax(Together):
    """As far from the honest as these are from one another.

    starts_at_mean: whether attackers send the honest mean, moved; else only what it is moved by.
    """

    starts_at_mean = True

    def vector(
        self, fed: Federation, side: SideBySide, keep: Params, honest: int, bad: int
    ) -> dict[str, np.ndarray]:
        means = super().vector(fed, side, keep, honest, bad)
        directions = self.directions(fed, side, keep, means)
        entries = range(len(side.clients))
        server = [as_params(means, keep), as_params(directions, keep)]
        inner = gram(fed, side, entries, list(keep), server=server)
        factor = np.float32(fed.on_root(lambda: float(self.factor(inner, bad))))
        moves = {path: factor * direction for path, direction in directions.items()}
        return {p: means[p] + moves[p] for p in moves} if self.starts_at_mean else moves

    def of_block(self, fed: Federation, block: Block, honest: int, bad: int) -> np.ndarray:
        return moments(block)[0]

    def directions(
        self, fed: Federation, side: SideBySide, keep: Params, means: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the direction of the attack, flat by path; collective."""
        if self.settings.direction == "sign":
            return {path: -np.sign(mean) for path, mean in means.items()}
        if self.settings.direction == "mean":
            squares = (float(np.square(mean, dtype=np.float64).sum()) for mean in means.values())
            length = math.sqrt(math.fsum(squares)) or 1.0
            return {path: np.float32(-1 / length) * mean for path, mean in means.items()}
        parts = {path: np.zeros_like(mean) for path, mean in means.items()}
        for (path, start, stop), std in side.each(lambda block: moments(block)[1]):
            parts[path][start:stop] = -std
        return parts

    def factor(self, inner: np.ndarray, bad: int) -> float:
        """Return g.

        inner: products of the honest updates, their mean m and the direction p.
        bad: number of attackers.
        """
        n = len(inner) - 2
        return min(self.largest(inner, n), default=0.0)

    def largest(self, inner: np.ndarray, n: int) -> list[float]:
        """Return the largest g that each honest update allows."""
        bound = float(squared_distances(inner[:n, :n]).max())
        m, p = n, n + 1
        to_mean = squared_distances(inner[: n + 1, : n + 1])[m, :n]
        along = inner[p, m] - inner[p, :n]
        return [
            positive_root(inner[p, p], 2 * b, c - bound)
            for b, c in zip(along.tolist(), to_mean.tolist(), strict=True)
        ]


class MinSum(MinMax):
    """As far from the honest in sum as one of these is from the others."""

    def largest(self, inner: np.ndarray, n: int) -> list[float]:
        distances = squared_distances(inner[: n + 1, : n + 1])
        bound = float(distances[:n, :n].sum(axis=1).max())
        m, p = n, n + 1
        along = float((inner[p, m] - inner[p, :n]).sum())
        return [positive_root(n * inner[p, p], 2 * along, float(distances[m, :n].sum()) - bound)]


class FangOnKrum(MinMax):
    """Against the signs of the honest mean, as far as Krum still takes it for the best update."""

    starts_at_mean = False

    def directions(
        self, fed: Federation, side: SideBySide, keep: Params, means: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {path: -np.sign(mean) for path, mean in means.items()}

    def factor(self, inner: np.ndarray, bad: int) -> float:
        honest, along, size = inner[:-2, :-2], inner[-1, :-2], float(inner[-1, -1])
        if size <= 0:
            return 0.0
        between, squares = squared_distances(honest), np.diag(honest)
        nearest = float(scores(np.sqrt(between), 0).min())  # among the honest nobody attacks
        longest = math.sqrt(max(0.0, float(squares.max())))
        compared = max(1, len(honest) - bad - 1)  # honest ones in the score of an attacker
        factor = (nearest / compared + longest) / math.sqrt(size)
        while factor > SMALLEST:
            to_honest = np.maximum(0.0, factor * (factor * size - 2 * along) + squares)
            if is_chosen(between, to_honest, bad):
                break
            factor /= 2
        return factor


def is_chosen(between: np.ndarray, to_honest: np.ndarray, bad: int) -> bool:
    """Return whether Krum takes the update that all attackers send.

    between: [n, n], squared distances between honest updates.  to_honest: [n], from the attackers'.
    """
    n = len(between)
    distances = np.zeros((n + bad, n + bad))
    distances[:n, :n] = between
    distances[:n, n:], distances[n:, :n] = to_honest[:, None], to_honest
    of_all = scores(distances, bad)
    return bool(of_all[n:].min() < of_all[:n].min())


def positive_root(a: float, b: float, c: float) -> float:
    """Return the largest g >= 0 with a g^2 + b g + c <= 0; 0 if there is none."""
    if a <= 0 or b * b < 4 * a * c:
        return 0.0
    return max(0.0, (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a))


def hidden_deviations(n: int, bad: int) -> float:
    """Return z of ALIE for n clients of a round, of which `bad` attack.

    If they are the majority of the round, they hide before one honest client nevertheless.
    """
    needed = max(1, n // 2 + 1 - bad)
    return NormalDist().inv_cdf((n - bad - needed) / (n - bad)) if n - bad > needed else 0.0


def is_sent(block: Block) -> np.ndarray:
    """Return which values of a block an honest client sends, [m]."""
    return np.asarray((block.weights > 0).any(axis=0))


def moments(block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation (n - 1) of each column among those that have it, [m]."""
    present = block.weights > 0
    n = present.sum(axis=0)
    mean = block.values.sum(axis=0) / np.maximum(1, n)
    squares = np.where(present, np.square(block.values - mean), 0.0).sum(axis=0)
    return mean, np.sqrt(squares / np.maximum(1, n - 1))


def count(fed: Federation, uploads: Mapping[int, Upload], attack: Together) -> tuple[int, int]:
    """Return the numbers of honest clients and of attackers that send something; collective."""
    flags = fed.gather({k: int(attack.acts(fed, k)) for k in uploads})
    return len(flags) - sum(flags.values()), sum(flags.values())


def tensors_of(upload: Upload) -> Any:
    """Iterate over (part, value) of the tensors of an upload."""
    for name, part in upload.parts.items():
        for value in values_of(part, upload.relative_to.get(name)):
            yield name, value


def key(name: str, value: Value) -> str:
    """Return the name of a tensor among those of all clients: complete ones have one shape."""
    shape = "" if value.at is not None else tuple(value.tensor.shape)
    return f"{name}:{value.path}:{shape}"


def is_of_pieces(key: str) -> bool:
    """Return whether clients send pieces of the tensor of this name."""
    return key.endswith(":")


def complete_shapes(
    fed: Federation, values: Mapping[int, list[tuple[str, Value]]]
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, as large as the pieces of these clients need; collective."""
    mine = {
        k: {key(name, value): needed(value) for name, value in of_client}
        for k, of_client in values.items()
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for of_client in fed.comm.gather(mine).values():
        for path, shape in of_client.items():
            shapes[path] = tuple(map(max, shapes.get(path, shape), shape))
    return shapes


def needed(value: Value) -> list[int]:
    """Return the shape that the complete tensor of a value has at least."""
    shape = list(value.tensor.shape)
    for i, axis in enumerate(value.at or ()):
        shape[i] = int(torch.as_tensor(axis).max()) + 1 if len(axis) else 0
    return shape


def term_of(values: list[tuple[str, Value]]) -> Term:
    """Return the updates of a client as a term."""
    updates = {key(name, value): torch.from_numpy(update_of(value)) for name, value in values}
    at = {key(name, value): value.at for name, value in values if value.at is not None}
    return Term(Params(updates), 1.0, at)


def as_params(parts: Mapping[str, np.ndarray], keep: Params) -> Params:
    """Return flat values by path in their shapes."""
    return Params(
        {path: torch.from_numpy(part).view(keep[path].shape) for path, part in parts.items()}
    )


def replaced(
    upload: Upload, values: list[tuple[str, Value]], vector: Mapping[str, torch.Tensor]
) -> Upload:
    """Return an upload with the attackers' updates in the place of its own.

    vector: of the attackers; nan where no honest client sends anything.
    """
    parts = {}
    for part_name, part in upload.parts.items():
        new = {}
        for name, value in values:
            path = key(name, value)
            if name == part_name and path in vector:
                update = vector[path].numpy()
                if value.at is not None:
                    update = update[cells(value.at)]
                    update = np.where(np.isnan(update), update_of(value), update)
                new[value.path] = added(value, update)
        parts[part_name] = with_values(part, new)
    return upload.changed(parts)
