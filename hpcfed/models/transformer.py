"""Small transformers for texts and for tables.

Vaswani et al., NeurIPS 2017, arXiv:1706.03762; for tables Gorishniy et al. (FT-Transformer),
NeurIPS 2021, arXiv:2106.11959.

Encoders of a few layers with 4 heads, normalised before each part of a layer (Xiong et al., ICML
2020, arXiv:2002.04745), learned positions, GELU, no dropout. They have few parameters, because
clients have few data. A linear layer with ReLU makes the representation of width d from the pooled
states.
Deviations: sizes and the choice of pooling are this package's. FT-Transformer has 192 values a
token, ReGLU, and no linear layer between the class token and the head. Here categorical columns are
treated as numbers like all others, as data sets store them.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

WIDTH = 64  # values of a token
HEADS = 4
INNER = 4 * WIDTH  # hidden units of a layer's two linear layers
TABLE_LAYERS = 3
CHAR_LAYERS = 2
SPREAD = 0.02  # initial standard deviation of positions, columns and the class token
NOTHING = -1e5  # score of padding: infinity would give nan for a text of padding alone


def drawn(*shape: int) -> nn.Parameter:
    """Return a parameter with small normal values, drawn from torch's global generator."""
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=SPREAD))


class Attend(nn.Module):
    """Attention, softmax(q k^T / sqrt(w)) v.

    q, k, v: [n, heads, L, w].  mask: [n, L], bool, tokens that may be read; None: all.
    It consists of plain products, which every training engine can record, batch and replay bit for
    bit.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], NOTHING)
        return scores.softmax(-1) @ v


class Layer(nn.Module):
    """A transformer layer: h + attention(norm(h)), then h + linear layers of norm(h).

    h: [n, L, WIDTH].
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.attend = nn.Linear(WIDTH, 3 * WIDTH), Attend()
        self.join = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.first(h)).chunk(3, 2)
        )
        h = h + self.join(self.attend(q, k, v, mask).transpose(1, 2).flatten(2))
        return h + self.inner(self.second(h))


class Transformer(nn.Module):
    """A transformer for texts: tokens [n, L], int64 -> representation [n, d], >= 0.

    last: the representation is made of the state at the last token, to predict the next one, and 0
    is a token like others. Otherwise it is made of the mean over the tokens that are not padding
    (0). For a text without any token it depends only on the bias of the last layer.
    """

    def __init__(self, shape: tuple[int, ...], d: int, vocabulary: int, layers: int, last: bool):
        super().__init__()
        self.last = last
        self.words = nn.Embedding(vocabulary, WIDTH, padding_idx=None if last else 0)
        self.places = drawn(shape[0], WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, d)

    def forward(self, x: Tensor) -> Tensor:
        mask = None if self.last else x > 0
        h = self.words(x) + self.places[: x.shape[1]]
        for layer in self.layers:
            h = layer(h, mask)
        h = self.norm(h)
        return self.out(h[:, -1] if mask is None else mean(h, mask)).relu()


def mean(h: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the steps that are not padding, [n, width]; 0 without such steps."""
    weight = mask.to(h.dtype)[:, :, None]
    return (h * weight).sum(1) / weight.sum(1).clamp(min=1)


class TableTransformer(nn.Module):
    """A transformer for rows of numbers [n, F] -> representation [n, d], >= 0.

    Column j becomes the token x_j w_j + b_j. The representation is made of the state of a class
    token.
    """

    def __init__(self, shape: tuple[int, ...], d: int):
        super().__init__()
        self.weight = drawn(shape[0], WIDTH)
        self.bias = drawn(shape[0], WIDTH)
        self.token = drawn(1, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(TABLE_LAYERS))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, d)

    def forward(self, x: Tensor) -> Tensor:
        columns = x[:, :, None] * self.weight + self.bias
        h = torch.cat([self.token.expand(len(x), 1, WIDTH), columns], 1)
        for layer in self.layers:
            h = layer(h)
        return self.out(self.norm(h[:, 0])).relu()


text_1 = partial(Transformer, layers=1, last=False)
text_2 = partial(Transformer, layers=2, last=False)
text_4 = partial(Transformer, layers=4, last=False)
char = partial(Transformer, layers=CHAR_LAYERS, last=True)
