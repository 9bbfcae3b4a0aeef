"""Augmentation of batches of images: normalised views by crops, flips, colour and affine changes.

A whole batch, or several, are augmented at once. Every draw comes from the given generator, on its
device, batch by batch: several batches at once get what they would get one after the other.
Parameters are drawn for each example on its own, so the result for an example does not depend on
its neighbours.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from hpcfed.core.errors import ConfigError, unknown
from hpcfed.core.inputs import floats, prepare_
from hpcfed.core.rng import shuffled
from hpcfed.data import colour, crop
from hpcfed.data.affine import affine
from hpcfed.data.crop import uniform


class Policy(NamedTuple):
    """An augmentation policy.

    apply: (x, g, V, sizes) -> V views of all images, [V * B, C, H, W], in new memory, view by view,
    not normalised. sizes: of the batches that follow one another in x.
    about: a line of description.
    """

    apply: Callable[[Tensor, torch.Generator, int, Sequence[int]], Tensor]
    about: str


def views(
    x: Tensor,
    n_views: int,
    policy: str,
    mean: Sequence[float],
    std: Sequence[float],
    g: torch.Generator,
    sizes: Sequence[int] = (),
) -> list[Tensor]:
    """Draw n_views independent, normalised views of every image by one of POLICIES.

    x: [B, C, H, W], uint8, or float in 0..1 for "simclr", whose changes of colour are clamped to
    0..1.
    sizes: numbers of images of the batches that follow one another in x; default: x is one batch.
    Returns n_views tensors [B, C, H, W], float32.
    Raises ConfigError for an unknown policy.
    """
    if policy not in POLICIES:
        raise ConfigError(unknown("augmentation", policy, POLICIES))
    images = POLICIES[policy].apply(x, g, n_views, sizes or [len(x)])
    return list(prepare_(images, mean, std).chunk(n_views))


def simclr(
    x: Tensor,
    g: torch.Generator,
    n_views: int = 1,
    sizes: Sequence[int] = (),
    flip: float = 0.5,
) -> Tensor:
    """Crop and resize, flip, jitter colours with probability 0.8, turn grey with probability 0.2.

    x: [B, C, H, W].
    flip: probability of a horizontal flip; the authors flip digits and letters too.
    Returns [n_views * B, C, H, W], float32 in 0..1. With another number of channels than three,
    only brightness and contrast change.

    Chen et al. (SimCLR), ICML 2020, appendix A; settings of FedClassAvg's code (supcon_utils.py).
    Deviations: the four changes of colour have one random order for each batch, instead of one for
    each image and view; values are not rounded to 256 levels between the steps.
    """
    orders, boxes, colours = [], [], []
    for n in sizes or [len(x)]:
        orders.append(shuffled(4, g))
        boxes.append(uniform(g, n_views * n, crop.DRAWS, x.device))
        colours.append(uniform(g, n_views * n, colour.DRAWS, x.device))
    images = crop.resized_crop(floats(x), by_view(boxes, n_views), flip)
    if len(orders) == 1:
        return colour.jitter_(images, orders[0], colours[0])
    each = [order for order, n in zip(orders, sizes, strict=True) for _ in range(n)]
    return colour.jitter_each_(images, each * n_views, by_view(colours, n_views))


def crop_flip(
    x: Tensor,
    g: torch.Generator,
    n_views: int = 1,
    sizes: Sequence[int] = (),
    flip: float = 0.5,
    padding: int = 4,
) -> Tensor:
    """Pad with black, crop at random to the original size, and flip with probability `flip`.

    x: [B, C, H, W], any type.
    Returns [n_views * B, C, H, W], same type.
    He et al., CVPR 2016, section 4.2.
    """
    n, _, height, width = x.shape
    draws = draw_by_batch(g, sizes or [n], n_views, 3, x.device)  # [V * B, 3]
    top, left = (draws[:, :2] * (2 * padding + 1)).long().unbind(1)
    mirrored = draws[:, 2] < flip
    # position of the same window in the flipped image
    left = torch.where(mirrored, 2 * padding - left, left)
    # whole windows are copied, because indexing each pixel takes four times as long
    both = pad(torch.stack([x, x.flip(3)]), [padding] * 4)
    # [2, B, C, top, left, H, W], not copied
    windows = both.unfold(3, height, 1).unfold(4, width, 1)
    return windows[mirrored.long(), torch.arange(n, device=x.device).repeat(n_views), :, top, left]


def no_augmentation(
    x: Tensor, g: torch.Generator, n_views: int = 1, sizes: Sequence[int] = ()
) -> Tensor:
    """Return the images unchanged, n_views times; nothing is drawn."""
    return x.repeat(n_views, *[1] * (x.dim() - 1))


def draw_by_batch(
    g: torch.Generator, sizes: Sequence[int], n_views: int, draws: int, device: torch.device
) -> Tensor:
    """Draw uniform numbers for the views of batches, [V * B, draws], view by view."""
    return by_view([uniform(g, n_views * n, draws, device) for n in sizes], n_views)


def by_view(draws: Sequence[Tensor], n_views: int) -> Tensor:
    """Join what was drawn for the views of batches, [V * b, ...] each, to [V * B, ...].

    In each of them, and in the result, view v of all images comes before view v + 1.
    """
    if len(draws) == 1:
        return draws[0]
    return torch.cat([part.unflatten(0, (n_views, -1)) for part in draws], 1).flatten(0, 1)


POLICIES: dict[str, Policy] = {
    "simclr": Policy(simclr, "resized crop, flip, colour jitter, grey (FedClassAvg)"),
    "crop-flip": Policy(crop_flip, "shift by up to 4 pixels, flip"),
    "affine": Policy(
        lambda x, g, n, sizes: affine(floats(x), draw_by_batch(g, sizes, n, 4, x.device)),
        "small rotation, shift and zoom; for digits, letters",
    ),
    "none": Policy(no_augmentation, "images as they are"),
}
