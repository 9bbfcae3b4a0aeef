"""Gradient inversion of a client's uploads: its images, and what an attack makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.core import rng
from hpcfed.core.errors import ConfigError
from hpcfed.core.inputs import restore
from hpcfed.core.progress import track
from hpcfed.core.shapes import Shapes
from hpcfed.core.wording import count_noun
from hpcfed.launch.leakage import inversion, uploads

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.core.params import Params
    from hpcfed.engine.rounds import Rounds
    from hpcfed.federation.federation import Federation
    from hpcfed.launch.leakage.settings import Settings

ROUNDED = 1e-3  # of pixels


@dataclass(frozen=True)
class Image:
    """One reconstruction: the client's image and the attack's, [channels, height, width] in 0..1.

    label, inferred: names of classes.
    """

    client: int
    row: int
    label: str
    inferred: str
    mse: float
    original: Tensor
    result: Tensor

    @property
    def psnr(self) -> float:
        return inversion.psnr(self.mse)

    @property
    def numbers(self) -> dict[str, Any]:
        """The reconstruction without its pixels."""
        columns = ("client", "row", "label", "inferred", "mse")
        finite = self.psnr if self.mse else None
        return {**{name: getattr(self, name) for name in columns}, "psnr": finite}


def check_images(fed: Federation, settings: Settings) -> None:
    """Raise ConfigError for examples or optimisers that gradient inversion cannot take."""
    job, shape = fed.job, fed.store.form[0]
    images = not isinstance(shape, Shapes) and len(shape) == 3 and min(shape[1:]) > 1
    if not (fed.task.has_classes and images):
        raise ConfigError(
            f"leakage: --attack {settings.attack} reconstructs images with one class each, and "
            f"{job.data.name} has other examples; take --attack membership"
        )
    if job.local.optimiser != "sgd":
        raise ConfigError(
            f"leakage: --attack {settings.attack} needs local.optimiser = 'sgd'; a first step of "
            f"{job.local.optimiser} keeps little but the signs of the gradient"
        )


def reconstruct(rounds: Rounds, k: int, settings: Settings, classes: Sequence[str]) -> list[Image]:
    """Return the reconstructions of examples of client k, drawn from the job's seed.

    classes: their names.
    """
    fed, client = rounds.fed, rounds.fed.clients[k]
    if settings.images > client.n:
        raise ConfigError(
            f"leakage: --images {settings.images}: client {k} has "
            f"{count_noun(client.n, 'training example')}"
        )
    check_batch(fed, client, settings)
    draw = rng.stream(fed.seed, "leakage", k)
    rows = draw.choice(client.n, settings.images, replace=False)
    groups = rows.reshape(-1, settings.batch)
    images = []
    for group in track(groups, f"client {k}: {count_noun(len(groups), 'upload')}"):
        batch = client.train.pick(group)
        received = uploads.receive(rounds, k, batch, settings.steps)
        turn = uploads.turn_of(rounds, client, received.received, settings.steps)
        originals = pixels(fed, fed.prepare(batch.batch(np.arange(len(batch)))[0]))
        if originals.min() < -ROUNDED or originals.max() > 1 + ROUNDED:
            raise ConfigError(
                f"leakage: {fed.job.data.name} has pixels from {originals.min():.3g} to "
                f"{originals.max():.3g}, and PSNR is defined here for 0 to 1; scale the images"
            )
        g = rng.torch_stream(fed.seed, "leakage", "start", k, int(group[0]))
        with explain_refusals(client.architecture):
            results, inferred = search(fed, turn, received.change, originals.shape, settings, g)
        which, errors = inversion.match(originals, results)
        images += [
            Image(
                k,
                int(row),
                classes[int(batch.labels[i])],
                classes[int(inferred[which[i]])],
                float(errors[i]),
                originals[i],
                results[which[i]],
            )
            for i, row in enumerate(group)
        ]
    return images


def check_batch(fed: Federation, client: Client, settings: Settings) -> None:
    """Raise ConfigError for a model that does not train on so few examples."""
    modules = fed.module(client.architecture).model.modules()
    if settings.batch == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in modules):
        raise ConfigError(
            f"leakage: {client.architecture} has batch normalisation, which needs several examples "
            f"in a batch; give --batch 2 or more, or set models.norm = 'group'"
        )


@contextmanager
def explain_refusals(architecture: str) -> Iterator[None]:
    """Raise ConfigError, in the block, for layers of which torch has no second derivative."""
    try:
        yield
    except RuntimeError as error:
        if "derivative for" not in str(error):
            raise
        raise ConfigError(
            f"leakage: {architecture} has a layer whose gradient torch cannot differentiate, and "
            f"gradient inversion needs that: {error}"
        ) from error


def search(
    fed: Federation,
    turn: inversion.Turn,
    change: Params,
    shape: torch.Size,
    settings: Settings,
    g: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return the images [n, channels, height, width], in 0..1, and labels [n] of an upload.

    change: as the server has it.  shape: of the images.  g: draws where the search starts.
    """
    sent = inversion.flatten([change[name] for name in turn.trained])
    iterations = settings.iterations or inversion.ITERATIONS[settings.attack]
    x = torch.randn(shape, generator=g).to(fed.device)
    if settings.attack == "dlg":
        y = torch.randn((shape[0], fed.classes), generator=g, dtype=torch.float64)
    elif inversion.HEAD_BIAS in change:
        y = inversion.infer_labels(-change[inversion.HEAD_BIAS], shape[0])
    else:
        raise ConfigError(
            "leakage: this model has no head whose bias tells the labels; take --attack dlg"
        )
    y = y.to(fed.device)
    if settings.attack == "invert":
        ends = (torch.full((1, shape[1], 1, 1), end, device=fed.device) for end in (0.0, 1.0))
        low, high = map(fed.prepare, ends)
        x = inversion.invert(turn, sent, x, y, iterations, (low, high), settings.tv)
    else:
        x, y = inversion.dlg(turn, sent, x.double(), y, iterations)
    return pixels(fed, x.float()).nan_to_num().clamp(0, 1), y


def pixels(fed: Federation, x: Tensor) -> Tensor:
    """Return pixels of prepared images on the CPU, in 0..1 if they are the client's."""
    return restore(x.cpu(), fed.data.mean, fed.data.std, torch.float32)
