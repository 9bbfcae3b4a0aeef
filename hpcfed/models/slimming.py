"""Network slimming: channels whose batch normalisation scales them least are dropped.

Liu et al. (Learning Efficient Convolutional Networks through Network Slimming), ICCV 2017,
arXiv:1708.06519, section 3, without the penalty on scales. A channel is dropped with all that makes
and reads it (`widths.Units`); one that several layers of batch normalisation scale, as those that
are added to one another, counts by the largest of its scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfed.core.params import Params
from hpcfed.models.widths import Units, Window, take


@dataclass(frozen=True)
class Slimming:
    """What can be dropped of a model, and what is left of it by masks.

    units: its groups.  scales: names of the weights of its layers of batch normalisation.
    A mask is a bool tensor [channels] on the CPU, of the channels of all groups that are scaled,
    one group after the other; False where one is dropped.
    """

    units: Units
    scales: tuple[str, ...]

    @classmethod
    def of(cls, model: nn.Module, units: Units) -> Slimming:
        """For models of this architecture."""
        found = tuple(
            f"{path}.weight"
            for path, m in model.named_modules()
            if isinstance(m, _BatchNorm) and m.affine and f"{path}.weight" in units.axes
        )
        return cls(units, found)

    @property
    def groups(self) -> list[int]:
        """The groups of channels that are scaled."""
        axes = [self.units.axes[name][0] for name in self.scales]
        held = {stretch.group for axis in axes for stretch in axis}
        return [group for group in self.units.sizes if group in held]

    @property
    def channels(self) -> int:
        """The length of a mask."""
        return sum(self.units.sizes[group] for group in self.groups)

    def whole(self) -> Tensor:
        """The mask of a model of which nothing is dropped."""
        return torch.ones(self.channels, dtype=torch.bool)

    def split(self, values: Tensor) -> dict[int, Tensor]:
        """Values of all channels, as those of a mask, by group."""
        sizes = [self.units.sizes[group] for group in self.groups]
        return dict(zip(self.groups, values.split(sizes), strict=True))

    def importance(self, params: Mapping[str, Tensor]) -> Tensor:
        """The largest absolute scale of each channel, [channels], on the CPU."""
        found = {group: torch.zeros(self.units.sizes[group]) for group in self.groups}
        for name in self.scales:
            scale, start = params[name].detach().abs().cpu(), 0
            for group, size, repeat in self.units.axes[name][0]:
                own = scale[start : start + size * repeat].view(size, repeat).amax(1)
                start += size * repeat
                if group in found:
                    found[group] = torch.maximum(found[group], own)
        return torch.cat(list(found.values()))

    def prune(self, params: Mapping[str, Tensor], mask: Tensor, rate: float) -> Tensor:
        """A new mask: without the share `rate` of the channels that the old one has left, those of
        least importance of all layers together; the last channel of a group stays.
        """
        order = self.importance(params).masked_fill(~mask, torch.inf).argsort(stable=True)
        new = mask.clone()
        new[order[: int(rate * int(mask.sum()))]] = False
        for group, left in self.split(new).items():
            if not left.any():
                last = self.split(self.importance(params).masked_fill(~mask, -1.0))[group].argmax()
                left[last] = True  # of `new`, whose view it is
        return new

    def window(self, mask: Tensor) -> Window:
        """Where what is left lies in each tensor."""
        every = {group: np.arange(size) for group, size in self.units.sizes.items()}
        left = {group: np.flatnonzero(own.numpy()) for group, own in self.split(mask).items()}
        return self.units.places(every | left)

    def pack(self, params: Mapping[str, Tensor], mask: Tensor) -> Params:
        """The model without what is dropped: what is sent of it."""
        return take(params, self.window(mask))

    def kept(self, params: Mapping[str, Tensor], mask: Tensor) -> Params:
        """1 where a value of the model is left, else 0: by it a model is multiplied."""
        found, window = Params(), self.window(mask)
        for name, value in params.items():
            ones = torch.ones_like(value)
            for dim, places in enumerate(window.get(name, ())):
                gone = np.setdiff1d(np.arange(value.shape[dim]), places)
                ones.index_fill_(dim, torch.from_numpy(gone).to(value.device), 0.0)
            found[name] = ones
        return found


def similarity(a: Tensor, b: Tensor) -> float:
    """The cosine of two masks, from 0 to 1."""
    return float((a & b).sum()) / float(a.sum() * b.sum()) ** 0.5
