"""Encoders of one modality: inputs [n, *shape] -> steps in time [n, T, STEP].

Feng et al. (FedMultimodal), KDD 2023, arXiv:2306.09486, section 4.2, for conv1d-gru and gru: three
convolutions of kernel 5 with 32, 64 and 128 maps, ReLU, pooling by 2 and dropout 0.1, then a GRU of
128 units. Deviations: none for these. The other encoders are this package's own; inputs without
time are one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.core.errors import ConfigError
from hpcfed.core.shapes import Modality

STEP = 128  # values of a step
MAPS = (32, 64, STEP)
KERNEL, POOL, DROPOUT = 5, 2, 0.1
WORD = 100  # values of a token's vector, as in `hpcfed.models.lstm`


class Steps(NamedTuple):
    """The output of an encoder.

    h: [n, T, STEP].  mask: [n, T], bool, steps that are not padding; None: all.
    """

    h: Tensor
    mask: Tensor | None = None

    def mean(self) -> Tensor:
        """Return the mean over the steps that are not padding, [n, STEP]; 0 without such steps."""
        if self.mask is None:
            return self.h.mean(1)
        weight = self.mask.to(self.h.dtype)[:, :, None]
        return (self.h * weight).sum(1) / weight.sum(1).clamp(min=1)


class Mlp(nn.Module):
    """Two linear layers with ReLU, for numbers of any shape; the output is one step."""

    def __init__(self, modality: Modality):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(modality.shape), STEP),
            nn.ReLU(),
            nn.Linear(STEP, STEP),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Steps:
        return Steps(self.layers(x)[:, None])


class Conv2d(nn.Module):
    """Two 3x3 convolutions with pooling, then a linear layer, for images [n, C, H, W].

    The output is one step.
    """

    def __init__(self, modality: Modality):
        super().__init__()
        channels, height, width = modality.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), STEP),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Steps:
        return Steps(self.layers(x)[:, None])


class Sequence(nn.Module):
    """Convolutions, a GRU, or both, for sequences [n, C, L] or tokens [n, L].

    Token 0 is padding.
    """

    def __init__(self, modality: Modality, conv: bool, gru: bool):
        super().__init__()
        channels = WORD if modality.vocabulary else modality.shape[0]
        if modality.vocabulary:
            self.words = nn.Embedding(modality.vocabulary, WORD, padding_idx=0)
        self.tokens, layers = bool(modality.vocabulary), []
        for maps in MAPS if conv else ():
            layers += [
                nn.Conv1d(channels, maps, KERNEL, padding=KERNEL // 2),
                nn.ReLU(),
                nn.MaxPool1d(POOL),
                nn.Dropout(DROPOUT),
            ]
            channels = maps
        self.conv = nn.Sequential(*layers)
        self.gru = nn.GRU(channels, STEP, batch_first=True) if gru else None

    def forward(self, x: Tensor) -> Steps:
        mask = None
        if self.tokens:
            mask = x > 0
            x = self.words(x).transpose(1, 2)  # [n, WORD, L]
        x = self.conv(x)
        if mask is not None and len(self.conv):
            # a step after pooling stands for POOL ** 3 tokens, some of which may be padding
            mask = F.max_pool1d(mask.float(), POOL ** len(MAPS)) > 0
        h = x.transpose(1, 2)
        if self.gru is not None:
            h, _ = self.gru(h)
        return Steps(h, mask)


MAKERS: dict[str, Callable[[Modality], nn.Module]] = {
    "conv1d": partial(Sequence, conv=True, gru=False),
    "gru": partial(Sequence, conv=False, gru=True),
    "conv1d-gru": partial(Sequence, conv=True, gru=True),
    "conv2d": Conv2d,
    "mlp": Mlp,
}


def encoder(name: str, modality: Modality) -> nn.Module:
    """Return the encoder of this name (`config.architectures.ENCODERS`) for a modality."""
    return MAKERS[name](modality)


class Encoders(nn.Module):
    """One encoder for each modality; their tensors are named "encoders.MODALITY. ..."."""

    def __init__(self, modalities: dict[str, nn.Module]):
        super().__init__()
        self.names = tuple(modalities)
        for name, module in modalities.items():
            if hasattr(self, name):
                raise ConfigError(
                    f"a modality cannot be called {name!r}, which torch's modules have as a "
                    f"method; give it another name"
                )
            self.add_module(name, module)

    def forward(self, x: dict[str, Tensor]) -> dict[str, Steps]:
        """Return the steps of the modalities that a batch has; other inputs are ignored."""
        return {name: self._modules[name](x[name]) for name in self.names if name in x}  # type: ignore[misc]


def stacked(encoded: list[Steps]) -> tuple[Tensor, Tensor | None]:
    """Return the steps of all modalities one after the other, [n, T, STEP], and their mask.

    The mask, [n, T], is true for steps that are not padding; None: all.
    """
    h = torch.cat([steps.h for steps in encoded], 1)
    if all(steps.mask is None for steps in encoded):
        return h, None
    masks = [
        torch.ones(s.h.shape[:2], dtype=torch.bool, device=h.device) if s.mask is None else s.mask
        for s in encoded
    ]
    return h, torch.cat(masks, 1)
