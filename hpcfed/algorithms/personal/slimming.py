"""Network slimming: channels with the smallest scales in batch normalisation are dropped.

Liu et al. (Learning Efficient Convolutional Networks through Network Slimming), ICCV 2017,
arXiv:1708.06519, section 3, without the penalty on scales. A channel is dropped together with all
weights that make and read it (`widths.Units`). A channel that several layers of batch normalisation
scale, as in residual sums, counts by the largest of its scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfed import Client, Mean, Params, Upload
from hpcfed.models.widths import Units, Window, place, take


class Pruned(NamedTuple):
    """A model with 0 in dropped channels, and its mask, as in `Slimming`."""

    model: Params
    mask: Tensor


@dataclass(frozen=True)
class Slimming:
    """The prunable channels of a model, and masks over them.

    units: the model's groups of units.
    scales: names of the weights of its layers of batch normalisation.
    A mask is a bool tensor [channels] on the CPU, over the channels of all groups that are scaled,
    one group after the other; False where one is dropped.
    """

    units: Units
    scales: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module, units: Units) -> Slimming:
        """Return the object for models of this architecture."""
        scales = tuple(
            f"{path}.weight"
            for path, m in model.named_modules()
            if isinstance(m, _BatchNorm) and m.affine and f"{path}.weight" in units.axes
        )
        return cls(units, scales)

    @property
    def groups(self) -> list[int]:
        """The groups of channels that are scaled."""
        axes = [self.units.axes[name][0] for name in self.scales]
        scaled = {stretch.group for axis in axes for stretch in axis}
        return [group for group in self.units.sizes if group in scaled]

    @property
    def channels(self) -> int:
        """The length of a mask."""
        return sum(self.units.sizes[group] for group in self.groups)

    def all_channels(self) -> Tensor:
        """Return the mask of a model with all its channels."""
        return torch.ones(self.channels, dtype=torch.bool)

    def split(self, values: Tensor) -> dict[int, Tensor]:
        """Return values of all channels, such as a mask, by group."""
        sizes = [self.units.sizes[group] for group in self.groups]
        return dict(zip(self.groups, values.split(sizes), strict=True))

    def importance(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return the largest absolute scale of each channel, [channels], on the CPU."""
        largest = {group: torch.zeros(self.units.sizes[group]) for group in self.groups}
        for name in self.scales:
            scale, start = params[name].detach().abs().cpu(), 0
            for group, size, repeat in self.units.axes[name][0]:
                maxima = scale[start : start + size * repeat].view(size, repeat).amax(1)
                start += size * repeat
                if group in largest:
                    largest[group] = torch.maximum(largest[group], maxima)
        return torch.cat(list(largest.values()))

    def prune(self, params: Mapping[str, Tensor], mask: Tensor, rate: float) -> Tensor:
        """Return a new mask without the least important of the remaining channels.

        rate: the share of the remaining channels that is dropped. All layers are compared together.
        The last channel of a group stays.
        """
        order = self.importance(params).masked_fill(~mask, torch.inf).argsort(stable=True)
        new = mask.clone()
        new[order[: int(rate * int(mask.sum()))]] = False
        for group, left in self.split(new).items():
            if not left.any():
                last = self.split(self.importance(params).masked_fill(~mask, -1.0))[group].argmax()
                left[last] = True  # a view into `new`
        return new

    def window(self, mask: Tensor) -> Window:
        """Return the positions of the remaining values in each tensor."""
        channels = {group: np.flatnonzero(bits) for group, bits in self.split(mask).items()}
        return self.units.places(channels)

    def pack(self, params: Mapping[str, Tensor], mask: Tensor) -> Params:
        """Return the model without dropped channels, which is what is sent."""
        return take(params, self.window(mask))

    def unpack(self, packed: Mapping[str, Tensor], mask: Tensor) -> Params:
        """Return the model of which `pack` returned these values, with 0 in dropped channels."""
        return place(packed, self.window(mask), self.units)

    def remaining(self, params: Params, mask: Tensor) -> Params:
        """Return 1 for each remaining value of the model and 0 for each dropped one."""
        return self.unpack(self.pack(params.map(torch.ones_like), mask), mask)

    def upload(self, params: Params, mask: Tensor) -> Upload:
        """Return what a client sends of its pruned model: the values that are left, and the mask.

        The positions of the values follow from the mask.
        """
        model = Mean.of(self.pack(params, mask), at=self.window(mask))
        return Upload(model=model, mask=torch.from_numpy(np.packbits(mask.numpy())))

    def received(self, sent: Mapping[str, Any]) -> Pruned:
        """Return the model and the mask that a client sent by `upload`."""
        bits = np.unpackbits(sent["mask"].cpu().numpy(), count=self.channels)
        (packed,) = sent["model"].terms
        model = place(packed.value, packed.at, self.units)
        return Pruned(model, torch.from_numpy(bits).bool())

    def drop(self, client: Client, mask: Tensor) -> Tensor | None:
        """Set the dropped channels of a client's model to 0.

        Returns 1 where a value of the client's flat vector is left, else 0, [size]; None if all
        are.
        """
        if mask.all():
            return None
        flat, ones = client.skeleton.flat, self.remaining(client.params(), mask)
        remaining = client.skeleton.layout.flatten(ones).to(flat.device)
        flat.mul_(remaining)
        return remaining


def similarity(a: Tensor, b: Tensor) -> float:
    """Return the cosine of two masks, from 0 to 1; 0 if one of them has no channel."""
    return float((a & b).sum()) / max(1.0, float(a.sum() * b.sum())) ** 0.5


def peer_weights(masks: Mapping[int, Tensor], k: int) -> dict[int, float]:
    """Return the weight of each peer of client k, by client.

    The weights are the cosines of the peers' masks to that of k, over their sum. They are equal if
    nothing is pruned, or if no peer has a channel of client k.
    """
    alike = {
        j: similarity(masks[k], mask) if len(mask) else 1.0 for j, mask in masks.items() if j != k
    }
    total = sum(alike.values())
    return {j: value / total if total else 1 / len(alike) for j, value in alike.items()}
