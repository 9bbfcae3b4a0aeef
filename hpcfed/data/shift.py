"""Feature skew: images that differ by client, in rotation, colour and noise (`[data.shift]`).

A client's images all change in the same way, those of training and of tests; labels and the
partition stay. Noise is named by seed and example, so an image has the same noise on any number of
ranks, scaled by its client.
Rotation by group: Ghosh et al. (IFCA), NeurIPS 2020, arXiv:2006.04088, section 6.
Noise by client: Li et al. (NIID-Bench), arXiv:2102.02079, section 4.2.
Deviations: NIID-Bench draws the noise anew at each access, and IFCA numbers the clients of a group
one after the other; here client k is in group k modulo the number of groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from hpcfed.config.sections import Shift
from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import floats
from hpcfed.data import colour
from hpcfed.data.affine import warp
from hpcfed.data.dataset import DataSet, Split

WIDEST = 1 / 3  # of the colour circle: the largest change that `adjust_hue_` makes at once


@dataclass(frozen=True)
class Change:
    """How the images of one client, or of one domain, change.

    turns: quarter turns, counter-clockwise.  degrees: of a rotation, counter-clockwise.
    hue: share of the colour circle, -1/2..1/2.  noise: standard deviation, of pixels 0..1.
    noisy: whether any client has noise; the images of all are then float32.
    """

    turns: int = 0
    degrees: float = 0.0
    hue: float = 0.0
    noise: float = 0.0
    noisy: bool = False

    def __call__(self, x: np.ndarray, rows: np.ndarray, seed: int, part: str) -> np.ndarray:
        """Return these rows of the images, changed: [n, C, H, W].

        x: images of a split, uint8 or float32 in 0..1; not changed.  part: "train" or "test", which
        names the noise of a row.
        """
        images = np.rot90(x[rows], self.turns, (2, 3))
        if self.degrees % 360:
            images = as_stored(images, lambda values: rotate(values, self.degrees))
        if self.hue:
            images = as_stored(images, lambda values: turn_hue(values, self.hue))
        images = np.ascontiguousarray(images)
        if not self.noisy:
            return images
        noisy = floats(torch.from_numpy(images)).numpy()
        return (
            noisy + self.noise * noise(rows, images.shape[1:], seed, part) if self.noise else noisy
        )

    def apply(self, split: Split, rows: np.ndarray, seed: int, part: str) -> Split:
        """Return these examples of a split with changed images; the arguments are as above."""
        return Split(self(split.x, rows, seed, part), split.y[rows])


def of_client(shift: Shift, k: int, clients: int) -> Change:
    """Return the change of client k's images."""
    groups, hues = shift.rotation_groups, shift.hue_groups
    degrees = shift.degrees[k % len(shift.degrees)] if shift.degrees else 0.0
    if shift.noise_of == "std":
        sigma = shift.noise * k / max(1, clients - 1)
    else:
        sigma = math.sqrt(shift.noise * (k + 1) / clients)
    hue = (k % hues) / hues
    return Change(
        turns=k % groups * 4 // groups,
        degrees=degrees,
        hue=hue - 1 if hue > 1 / 2 else hue,
        noise=sigma,
        noisy=shift.noise > 0,
    )


def images_of(
    shift: Shift, clients: int, seed: int, x: np.ndarray, owners: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Return test images of several clients, each as its client has it, [n, C, H, W].

    x: images of the test split.  owners, rows: [n], client and row of each.
    """
    images = of_client(shift, 0, clients)(x, rows[:0], seed, "test")  # of the type of all
    images = np.empty((len(rows), *images.shape[1:]), images.dtype)
    for k in np.unique(owners):
        mine = owners == k
        images[mine] = of_client(shift, int(k), clients)(x, rows[mine], seed, "test")
    return images


def as_stored(images: np.ndarray, change: Callable[[torch.Tensor], torch.Tensor]) -> np.ndarray:
    """Return images after a change of pixels in 0..1, in their own type."""
    values = change(floats(torch.from_numpy(np.ascontiguousarray(images))))
    if images.dtype == np.uint8:
        return (values * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    return values.numpy()


def rotate(x: torch.Tensor, degrees: float) -> torch.Tensor:
    """Rotate images counter-clockwise, with bilinear interpolation; outside is black.

    x: [n, C, H, W], float32.
    """
    angle, ratio = math.radians(degrees), x.shape[2] / x.shape[3]
    cos, sin = math.cos(angle), math.sin(angle)
    # the axes of grid_sample are 2 wide whatever the image's height and width
    matrix = torch.tensor([[cos, -sin * ratio, 0.0], [sin / ratio, cos, 0.0]])
    return warp(x, matrix.expand(len(x), 2, 3))


def turn_hue(x: torch.Tensor, hue: float) -> torch.Tensor:
    """Move the hue of images by a share of the colour circle; x: [n, 3, H, W], overwritten."""
    steps = math.ceil(abs(hue) / WIDEST)
    for _ in range(steps):
        colour.adjust_hue_(x, torch.full((len(x),), hue / steps))
    return x


def noise(rows: np.ndarray, shape: tuple[int, ...], seed: int, part: str) -> np.ndarray:
    """Return standard normal noise for each of these rows of a split, [n, *shape], float32."""
    values = np.empty((len(rows), *shape), np.float32)
    for row, of_row in zip(rows.tolist(), values, strict=True):
        rng.stream(seed, "noise", part, row).standard_normal(out=of_row, dtype=np.float32)
    return values


def repeat(data: DataSet, copies: int) -> DataSet:
    """Return the data with the training split as often as said: row g n + i is image i again."""
    if copies == 1:
        return data
    rows = np.tile(np.arange(len(data.train.y)), copies)
    return replace(data, train=data.train.take(rows))


def check(shift: Shift, data: DataSet) -> None:
    """Raise ConfigError for a change that the data do not allow."""
    if not shift.active:
        return
    fields = {
        "rotation_groups": shift.rotation_groups > 1,
        "degrees": any(shift.degrees),
        "hue_groups": shift.hue_groups > 1,
        "noise": shift.noise > 0,
    }
    name = next(name for name, used in fields.items() if used)
    if data.vocabulary or data.modalities or len(data.shape) != 3:
        holds = "several modalities" if data.modalities else "no images"
        raise ConfigError(
            f"data.shift.{name} = {getattr(shift, name)}: changes images, but {data.name} has "
            f"{holds}; remove [data.shift], or take a data set of images"
        )
    channels, height, width = data.shape
    if shift.hue_groups > 1 and channels != 3:
        raise ConfigError(
            f"data.shift.hue_groups = {shift.hue_groups}: needs images of 3 channels, but those "
            f"of {data.name} have {channels}; remove it"
        )
    if shift.rotation_groups == 4 and height != width:
        raise ConfigError(
            f"data.shift.rotation_groups = 4: quarter turns need square images, but those of "
            f"{data.name} are {height} x {width}; set rotation_groups = 2"
        )
