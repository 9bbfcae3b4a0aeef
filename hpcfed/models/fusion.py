"""Models for several modalities: one encoder for each, and a fusion of their outputs, in the body.

concat and attention: Feng et al. (FedMultimodal), KDD 2023, arXiv:2306.09486, section 4.2. The
first layer of their classifier, with its ReLU, is the last of the body here, so that models.d = 64
gives their model.
mean: Ouyang et al. (Harmony), MobiSys 2023, where the features of all modalities are averaged.
gated: Wang et al. (FedCovid), ECML-PKDD 2022, section 5.2: features side by side, h' = W h, and the
representation is sigmoid(h') h', value by value.

A batch that lacks a modality is fused from the others. concat reads zeros in its place, as
FedMultimodal does; mean and attention leave it out.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.core.shapes import Shapes
from hpcfed.models.encoders import STEP, Encoders, encoder, stacked

HEADS, HIDDEN = 6, 512  # of the attention


class Concat(nn.Module):
    """The means over time of all modalities side by side, [n, M * STEP]."""

    def __init__(self, modalities: int):
        super().__init__()
        self.width = modalities * STEP

    def forward(self, encoded: dict, names: tuple[str, ...]) -> Tensor:
        some = next(iter(encoded.values())).h
        nothing = some.new_zeros(len(some), STEP)
        return torch.cat([encoded[m].mean() if m in encoded else nothing for m in names], 1)


class Mean(nn.Module):
    """The mean over modalities of their means over time, [n, STEP]."""

    def __init__(self, modalities: int):
        super().__init__()
        self.width = STEP

    def forward(self, encoded: dict, names: tuple[str, ...]) -> Tensor:
        return torch.stack([steps.mean() for steps in encoded.values()]).mean(0)


class Attention(nn.Module):
    """Attention heads over the steps of all modalities, [n, HEADS * STEP].

    The weights are softmax(U tanh(V h)) over all steps that are not padding.
    """

    def __init__(self, modalities: int):
        super().__init__()
        self.width = HEADS * STEP
        self.score = nn.Sequential(nn.Linear(STEP, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HEADS))

    def forward(self, encoded: dict, names: tuple[str, ...]) -> Tensor:
        h, mask = stacked(list(encoded.values()))
        scores = self.score(h)  # [n, T, HEADS]
        if mask is not None:
            # a finite number: if all steps are padding, infinity would give nan
            scores = scores.masked_fill(~mask[:, :, None], -1e5)
        return (scores.softmax(1).transpose(1, 2) @ h).flatten(1)


class Fusion(nn.Module):
    """A body for several modalities: inputs by modality -> representation [n, d], >= 0.

    Tensors: "encoders.MODALITY. ...", "fusion. ...", "out. ...".
    """

    def __init__(self, shapes: Shapes, d: int, kinds: dict[str, str], fusion: type[nn.Module]):
        super().__init__()
        self.encoders = Encoders({part.name: encoder(kinds[part.name], part) for part in shapes})
        self.fusion = fusion(len(shapes))
        self.out = nn.Linear(self.fusion.width, d)  # type: ignore[arg-type]

    def fuse(self, x: dict[str, Tensor]) -> Tensor:
        """Return the fused features, [n, width], which are the input of `represent`."""
        return self.fusion(self.encoders(x), self.encoders.names)

    def represent(self, h: Tensor) -> Tensor:
        return self.out(h).relu()

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        return self.represent(self.fuse(x))


class Gated(Fusion):
    """A Fusion with sigmoid(out) times out instead of the ReLU."""

    def represent(self, h: Tensor) -> Tensor:
        return F.silu(self.out(h))


concat = partial(Fusion, fusion=Concat)
mean = partial(Fusion, fusion=Mean)
attention = partial(Fusion, fusion=Attention)
gated = partial(Gated, fusion=Concat)
