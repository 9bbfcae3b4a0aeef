"""Attacks on a client's own training data: wrong labels, and classes for chosen images.

- label-flip: class y becomes C - 1 - y (Tolpegin et al., ESORICS 2020, arXiv:2007.08432).
- backdoor: a share of the images gets a trigger, a bright square, and the target's label (Gu et
  al., arXiv:1708.06733). With `distributed` each attacker has one of the four quarters of the
  trigger (Xie et al., ICLR 2020). Its success is the share of test images of other classes, with
  the trigger, that the model takes for the target.
- edge-case: a share of the images is replaced by images of one class of another data set, which
  clients do not have, with the target's label (Wang et al., NeurIPS 2020, arXiv:2007.05084). Its
  success is the share of test images of that class that the model takes for the target.

The attackers of the last two send r + s (v - r), where r is what they received and v what they have
trained (Bagdasaryan et al., AISTATS 2020, arXiv:1807.00459, "model replacement").

The data are changed during the attacker's turns only: its tests are as they were. Public examples
that are poisoned likewise are so from the start, for all.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hpcfed.clients.client import Shard
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.data.dataset import Split
from hpcfed.federation.transforms.attack.alone import OfUpdates
from hpcfed.federation.transforms.attack.attackers import Attacking
from hpcfed.federation.transforms.values import Value, update_of

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.data.edge_cases import EdgeCases
    from hpcfed.federation.federation import Federation


class OnData(Attacking):
    """Replaces the training examples of attackers during their turns."""

    def check(self, fed: Federation) -> None:
        if not fed.task.has_classes:
            raise ConfigError(
                f"attack.by = {self.settings.by!r} changes classes, but {fed.job.data.name} has "
                f"{fed.task.describe(fed.classes)} (task {fed.task.name!r}); take noise, sign-flip "
                f"or another attack on uploads"
            )

    def begin(self, fed: Federation) -> None:
        public = fed.public
        if n := round(self.settings.public * len(public)):
            chosen = rng.stream(fed.seed, "attack", "public").permutation(len(public))[:n]
            fed.data = replace(fed.data, public=self.poison_public(fed, public, chosen))

    def poison_public(self, fed: Federation, public: Shard, chosen: np.ndarray) -> Shard:
        """Return the public examples, of which these are poisoned."""
        raise NotImplementedError

    def examples(self, fed: Federation, client: Client, train: Shard) -> Shard:
        return self.poison(fed, client.id, train) if self.acts(fed, client.id) else train

    def poison(self, fed: Federation, k: int, train: Shard) -> Shard:
        """Return the examples that attacker k trains on."""
        raise NotImplementedError


class LabelFlip(OnData):
    """Wrong labels."""

    def poison(self, fed: Federation, k: int, train: Shard) -> Shard:
        return relabelled(train, fed.classes - 1 - train.labels)

    def poison_public(self, fed: Federation, public: Shard, chosen: np.ndarray) -> Shard:
        if public.labels.max() >= fed.classes:
            raise ConfigError(
                f"attack.public: the public examples have other classes than the clients' "
                f"{fed.classes}, and no method uses their labels; remove it, or take backdoor"
            )
        labels = public.labels.copy()
        labels[chosen] = fed.classes - 1 - labels[chosen]
        return relabelled(public, labels)


class Targeted(OnData, OfUpdates):
    """A class for chosen images, and updates that count more."""

    targeted = True

    def check(self, fed: Federation) -> None:
        super().check(fed)
        if self.settings.target >= fed.classes:
            raise ConfigError(
                f"attack.target = {self.settings.target}: classes are 0..{fed.classes - 1}"
            )

    def poison(self, fed: Federation, k: int, train: Shard) -> Shard:
        chosen = rng.stream(fed.seed, "attack", "poisoned", k).permutation(len(train))
        chosen = chosen[: max(1, round(self.settings.poisoned * len(train)))]
        return self.with_target(train, chosen, self.images(fed, k, train, chosen))

    def images(self, fed: Federation, k: int, train: Shard, chosen: np.ndarray) -> np.ndarray:
        """Return what attacker k has in the place of its images at these positions."""
        raise NotImplementedError

    def with_target(self, shard: Shard, chosen: np.ndarray, images: np.ndarray) -> Shard:
        """Return the examples with these images, labelled as the target, at some positions."""
        x, labels = shard.x[shard.rows], shard.labels.copy()
        x[chosen], labels[chosen] = images, self.settings.target
        return Shard.of_split(Split(x, labels), shard.device)

    def replaced(self, value: Value, g: np.random.Generator) -> np.ndarray:
        return np.float32(self.scale(1.0)) * update_of(value)


class Backdoor(Targeted):
    """A trigger in images, whose class is the target."""

    def check(self, fed: Federation) -> None:
        super().check(fed)
        test, side = fed.data.test, self.settings.patch
        shape = () if test.modalities else test.x.shape[1:]
        if len(shape) != 3 or min(shape[1:]) < side:
            holds = "are several modalities" if test.modalities else f"have the shape {shape}"
            raise ConfigError(
                f"attack.by = 'backdoor' puts a trigger of {side} x {side} pixels into images, but "
                f"the inputs of {fed.job.data.name} {holds}; take another attack, or a smaller "
                f"attack.patch"
            )
        self.bright = brightest(fed)

    def images(self, fed: Federation, k: int, train: Shard, chosen: np.ndarray) -> np.ndarray:
        quarter = sorted(self.clients).index(k) % 4 if self.settings.distributed else None
        return triggered(train.x[train.rows[chosen]], self.bright, self.settings.patch, quarter)

    def poison_public(self, fed: Federation, public: Shard, chosen: np.ndarray) -> Shard:
        images = triggered(public.x[public.rows[chosen]], self.bright, self.settings.patch)
        return self.with_target(public, chosen, images)

    def of_success(self, fed: Federation, client: Client | None = None) -> Shard:
        """Return the examples of other classes with the trigger, labelled as the target."""
        test = fed.data.test if client is None else client.test
        is_other = test.labels != self.settings.target
        others = np.flatnonzero(is_other)
        images = triggered(test.x[test.rows[others]], self.bright, self.settings.patch)
        labels = np.full(len(others), self.settings.target, test.labels.dtype)
        shard = Shard.of_split(Split(images, labels), test.device)
        shard.ids, shard.lengths = test.ids[others], test.kept_lengths(is_other)
        return shard


class EdgeCase(Targeted):
    """Images that no client has, whose class is the target."""

    def images(self, fed: Federation, k: int, train: Shard, chosen: np.ndarray) -> np.ndarray:
        cases = edge_cases(fed).train
        g = rng.stream(fed.seed, "attack", "edge-case", k)
        return cases[g.integers(len(cases), size=len(chosen))]

    def of_success(self, fed: Federation, client: Client | None = None) -> Shard:
        images = edge_cases(fed).test
        labels = np.full(len(images), self.settings.target, np.int64)
        shard = Shard.of_split(Split(images, labels), fed.device)
        if client is not None:
            return shard
        return shard.of_rank(fed.comm.rank, fed.comm.size, fed.job.evaluate.batch)


def edge_cases(fed: Federation) -> EdgeCases:
    """Return the images that no client has."""
    assert fed.data.edge_cases is not None  # this attack's jobs have them
    return fed.data.edge_cases


def relabelled(shard: Shard, labels: np.ndarray) -> Shard:
    """Return the same examples with other labels, [n]."""
    result = copy(shard)
    result.labels, result._resident_labels = labels, None
    return result


def brightest(fed: Federation) -> float:
    """Return the value of bright pixels, the same on all ranks; collective.

    Of whole numbers it is 255; else 1, or the largest value of the test images if that is more.
    """
    test = fed.data.test
    largest = 255.0 if test.x.dtype == np.uint8 else float(test.x[test.rows].max(initial=1.0))
    return max(fed.comm.gather({fed.comm.rank: largest}).values())


def triggered(
    images: np.ndarray, bright: float, side: int, quarter: int | None = None
) -> np.ndarray:
    """Return images [n, C, H, W] with the trigger in the lower right corner.

    bright: value of its pixels.  quarter: the one that they get, 0..3; None: all of it.
    """
    images = images.copy()
    H, W = images.shape[2:]
    half = -(-side // 2)
    rows, columns = slice(H - side, H), slice(W - side, W)
    if quarter is not None:
        rows = slice(H - side, H - side + half) if quarter < 2 else slice(H - side + half, H)
        left = quarter % 2 == 0
        columns = slice(W - side, W - side + half) if left else slice(W - side + half, W)
    images[:, :, rows, columns] = bright
    return images
