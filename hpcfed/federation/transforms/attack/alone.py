"""Attacks that a client makes by itself: they need its own upload only.

With r the value that the client received and v the one that it would send (r = 0 for values that
are no new versions of anything):

- noise: r + s z with standard normal z (Blanchard et al., NeurIPS 2017, "Gaussian attacker");
- sign-flip: r - s (v - r) (Li et al., AAAI 2019, arXiv:1811.03761, "sign-flipping");
- free-rider: r + s z, and s = 0 by default (Fraboni et al., AISTATS 2021, arXiv:2006.11901);
- overweight: v, and the weights of its means are multiplied by s.

Statistics of batch normalisation and whole numbers stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcfed.core import rng
from hpcfed.core.params import Mean
from hpcfed.federation.transforms.attack.attackers import Attacking
from hpcfed.federation.transforms.values import (
    Value,
    added,
    turn_of,
    update_of,
    values_of,
    with_values,
)

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.upload import Upload


class OfUpdates(Attacking):
    """Replaces each update of an upload."""

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        if not self.acts(fed, client.id):
            return upload
        parts = {}
        for name, part in upload.parts.items():
            g = rng.stream(fed.seed, "attack", fed.moment, client.id, turn_of(fed, client), name)
            values = values_of(part, upload.relative_to.get(name))
            new = {value.path: added(value, self.replaced(value, g)) for value in values}
            parts[name] = with_values(part, new)
        return upload.changed(parts)

    def replaced(self, value: Value, g: np.random.Generator) -> np.ndarray:
        """Return what the attacker sends in the place of an update."""
        raise NotImplementedError


class Noise(OfUpdates):
    """Random updates."""

    usual = 0.1  # standard deviation

    def replaced(self, value: Value, g: np.random.Generator) -> np.ndarray:
        return self.scale(self.usual) * g.standard_normal(value.tensor.shape, np.float32)


class SignFlip(OfUpdates):
    """Reversed updates."""

    def replaced(self, value: Value, g: np.random.Generator) -> np.ndarray:
        return np.float32(-self.scale(1.0)) * update_of(value)


class FreeRider(Noise):
    """What was received, with noise that hides it."""

    usual = 0.0


class Overweight(Attacking):
    """More weight than the client's examples give."""

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        if not self.acts(fed, client.id):
            return upload
        factor = self.scale(10.0)
        parts = {
            name: Mean(tuple(term._replace(weight=term.weight * factor) for term in part.terms))
            for name, part in upload.parts.items()
            if isinstance(part, Mean)
        }
        if not parts:
            fed.warnings.say(
                f"attack.by = 'overweight' changes nothing: clients of {fed.job.algorithm.name} "
                f"send no weights; set another attack.by, such as 'sign-flip'"
            )
        return upload.changed(parts)
