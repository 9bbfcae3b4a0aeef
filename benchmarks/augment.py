"""Two views of the paper's transforms: their share of a training step, and against torchvision's on
PIL images.

`python benchmarks/augment.py [--passes 9]`

One thread, batches of 64. The step is forward, backward and Adam on both views, channels last where
hpcfed has it so. The PIL pipeline is that of the authors' code, without the loader workers that it
needs beside the training process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from apart import Apart
from cases import CLASSES, COLOUR, GREY
from paired import Row, interleaved, ratio, save
from torch import Tensor

from hpcfed.core.compat import import_torchvision
from hpcfed.core.rng import scoped, torch_stream
from hpcfed.data.augment import views
from hpcfed.machine.devices import prepare
from hpcfed.models import build

BATCH = 64
MODELS = ("resnet18", "shufflenetv2", "googlenet", "alexnet")
BATCHES, PEER_PASSES = 10, 5  # batches a turn
KINDS = {"1x28x28": GREY, "3x32x32": COLOUR}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=9)
    options = parser.parse_args()
    prepare(torch.device("cpu"), threads=1)
    rows = [throughput(kind, shape) for kind, shape in KINDS.items()]
    rows += [share(model, kind, options.passes) for kind in KINDS for model in MODELS]
    save("augment", rows)


def throughput(kind: str, shape: tuple[int, int, int]) -> Row:
    """Views a second, ours over PIL's; each side in its own process, for the allocator is set for
    ours alone.
    """
    with Apart(ours, shape) as batch, Apart(theirs, shape) as pictures:
        seconds = interleaved({"ours": batch, "pil": pictures}, PEER_PASSES)
    micros = {name: 1e6 * min(values) / (BATCHES * BATCH) for name, values in seconds.items()}
    what = f"two views of {kind}: views a second, batched tensors over PIL images"
    return Row(
        what,
        ratio(seconds["pil"], seconds["ours"]),
        least=20,
        details={"microseconds per image": micros},
    )


def ours(shape: tuple[int, int, int]) -> Callable[[], None]:
    prepare(torch.device("cpu"), threads=1)
    return partial(several, batched(shape), images(shape))


def theirs(shape: tuple[int, int, int]) -> Callable[[], None]:
    return partial(several, by_pil(shape), images(shape))


def several(two_views: Callable[[Tensor], list[Tensor]], x: Tensor) -> None:
    """One turn of a side."""
    for _ in range(BATCHES):
        two_views(x)


def share(model: str, kind: str, passes: int) -> Row:
    """Time of the views over that of the step on them."""
    shape = KINDS[kind]
    x, make = images(shape), batched(shape)
    step, both = training(model, shape), make(x)
    seconds = interleaved({"views": lambda: make(x), "step": lambda: step(both)}, passes)
    return Row(
        f"two views of {kind} over a step of {model}",
        ratio(seconds["views"], seconds["step"]),
        most=0.1,
    )


def images(shape: tuple[int, int, int]) -> Tensor:
    return torch.randint(
        0, 256, (BATCH, *shape), dtype=torch.uint8, generator=torch_stream(0, "images")
    )


def batched(shape: tuple[int, int, int]) -> Callable[[Tensor], list[Tensor]]:
    """hpcfed's."""
    numbers, g = (0.5,) * shape[0], torch_stream(0, "views")
    return lambda x: views(x, 2, "simclr", numbers, numbers, g)


def by_pil(shape: tuple[int, int, int]) -> Callable[[Tensor], list[Tensor]]:
    """The authors': one image after the other, as an item of their data set."""
    import_torchvision()
    from torchvision.transforms.functional import to_pil_image

    transform = pipeline(shape)

    def two_views(x: Tensor) -> list[Tensor]:
        pictures = [
            to_pil_image(image) for image in x
        ]  # their data sets make the PIL image of an item, too
        return [torch.stack([transform(picture) for picture in pictures]) for _ in range(2)]

    return two_views


def pipeline(shape: tuple[int, int, int]) -> Callable[[Any], Tensor]:
    """Resized crop, flip, jitter with probability 0.8, grey with 0.2, to a tensor, normalised."""
    import_torchvision()
    from torchvision import transforms as T

    numbers = [0.5] * shape[0]
    return T.Compose(
        [
            T.RandomResizedCrop(shape[1], scale=(0.2, 1.0)),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            T.RandomGrayscale(p=0.2),
            T.ToTensor(),
            T.Normalize(numbers, numbers),
        ]
    )


def training(model: str, shape: tuple[int, int, int]) -> Callable[[list[Tensor]], None]:
    """One step on both views."""
    with scoped(0, "weights"):
        net = build(model, shape, CLASSES).train()
    optimiser = torch.optim.Adam(net.parameters(), fused=True)
    y = torch.arange(2 * BATCH) % CLASSES

    def step(both: list[Tensor]) -> None:
        optimiser.zero_grad()
        F.cross_entropy(net(torch.cat(both)), y).backward()
        optimiser.step()

    return step


if __name__ == "__main__":
    main()
