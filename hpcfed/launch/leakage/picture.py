"""The picture of gradient inversion: clients' images above what the attack makes of uploads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from torch import Tensor

from hpcfed.report.figures.plotting import PAGE, SMALL, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hpcfed.launch.leakage.reconstruction import Image

ACROSS = 8  # images in a row
WIDTH = PAGE / ACROSS  # inches of an image


def draw(images: Sequence[Image]) -> Figure:
    """Return the picture: pairs of rows, originals above reconstructions with their PSNR in dB."""
    across = min(ACROSS, len(images))
    pairs = -(-len(images) // across)
    figure = Picture(figsize=(max(2, across) * WIDTH, 2.3 * pairs * WIDTH), layout="constrained")
    axes = figure.subplots(2 * pairs, across, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for i, image in enumerate(images):
        row, column = 2 * (i // across), i % across
        show(axes[row, column], image.original, f"{image.client}: {image.label}")
        show(axes[row + 1, column], image.result, f"{image.psnr:.1f} dB")
    return figure


def show(ax: Axes, image: Tensor, title: str) -> None:
    """Show one image [channels, height, width] with values in 0..1."""
    values = image.permute(1, 2, 0).numpy()
    ax.imshow(
        values[..., 0] if values.shape[2] == 1 else values[..., :3],
        cmap="gray",
        vmin=0,
        vmax=1,
        interpolation="nearest",
    )
    ax.set_title(title, fontsize=SMALL, pad=2)
