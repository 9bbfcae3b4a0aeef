"""FedClassAvg as a researcher writes it for a GPU: modules, torch.optim, torchvision's transforms
in a DataLoader.

The loader's workers stay for the whole run and read ahead from one client to the next, which is
more than most do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from augment import pipeline
from cases import CLASSES, Case
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hpcfed.core.compat import import_torchvision
from hpcfed.core.rng import stream
from hpcfed.models import build
from hpcfed.training.losses import distance, supcon

D = 512


class Views(Dataset):
    """Two views of a PIL image, and its label."""

    def __init__(self, x: Tensor, y: Tensor):
        from torchvision.transforms.functional import to_pil_image

        self.pictures, self.y = [to_pil_image(image) for image in x], y
        self.transform = pipeline(x.shape[1:])

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.transform(self.pictures[i]), self.transform(self.pictures[i]), self.y[i]


class Order:
    """The rows of each batch of a round: client after client, each in a new order.

    sizes: examples of each client, which lie one client after the other.
    """

    def __init__(self, sizes: Sequence[int], batch: int):
        self.sizes, self.batch, self.g = sizes, batch, stream(0, "order")

    def __iter__(self) -> Any:
        start = 0
        for n in self.sizes:
            rows = start + self.g.permutation(n)
            yield from (part.tolist() for part in torch.from_numpy(rows).split(self.batch))
            start += n

    def owners(self) -> list[int]:
        """The client of each batch of a round."""
        return [k for k, n in enumerate(self.sizes) for _ in range(-(-n // self.batch))]


class Naive:
    """All clients' models and optimisers on the device; float32, eager, every loss read when it is
    there.

    data: images [n, *shape] in 0..1 and labels of each client, equal or not.  share: "head", or
    "all" that models hold, where they are alike.  defaults: with torch's own settings, by which
    convolutions are in tf32, and with cuDNN's benchmark mode; otherwise in float32.
    """

    def __init__(
        self,
        case: Case,
        device: torch.device,
        data: Sequence[tuple[Tensor, Tensor]],
        share: str = "head",
        defaults: bool = False,
    ):
        import_torchvision()
        self.case, self.device, self.share, self.defaults = case, device, share, defaults
        kinds = case.model.split(",")
        self.models = [
            net(kinds[k % len(kinds)], case.shape).to(device) for k in range(case.clients)
        ]
        self.optimisers = [
            torch.optim.Adam(model.parameters(), lr=case.lr) for model in self.models
        ]
        x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
        self.order = Order([len(labels) for _, labels in data], case.batch)
        workers = 0 if device.type == "cpu" else max(1, len(os.sched_getaffinity(0)) - 1)
        self.loader = DataLoader(
            Views(x.clamp(0, 1), y),
            batch_sampler=self.order,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
        )
        self.common = self.mean()

    def round(self) -> list[float]:
        """One epoch of every client, then the mean of what is shared. Returns the losses of
        all steps.
        """
        as_installed(self.defaults)
        losses, last = [], -1
        for k, (*views, y) in zip(self.order.owners(), self.loader, strict=True):
            if k != last:
                self.models[k].load_state_dict(self.common, strict=False)
            losses.append(self.step(k, [v.to(self.device) for v in views], y.to(self.device)))
            last = k
        self.common = self.mean()
        return losses

    def step(self, k: int, views: Sequence[Tensor], y: Tensor) -> float:
        model, optimiser = self.models[k], self.optimisers[k]
        optimiser.zero_grad()
        z = model.body(torch.cat(list(views)))
        loss = F.cross_entropy(model.head(z[: len(y)]), y) + supcon(z, torch.cat([y, y]))
        head = {
            name.removeprefix("head."): v
            for name, v in self.common.items()
            if name.startswith("head.")
        }
        loss = loss + 0.1 * distance(model.head, head)
        loss.backward()
        optimiser.step()
        return loss.item()

    def mean(self) -> dict[str, Tensor]:
        """The average of what is shared over all models; integers, as counts are, of the first."""
        states = [model.state_dict() for model in self.models]
        wanted = [name for name in states[0] if self.share == "all" or name.startswith("head.")]
        return {
            name: torch.stack([state[name] for state in states]).mean(0)
            if states[0][name].is_floating_point()
            else states[0][name].clone()
            for name in wanted
        }


class Net(nn.Module):
    """A body, and a linear layer on what it represents."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body, self.head = body, nn.Linear(D, CLASSES)


def net(name: str, shape: tuple[int, ...]) -> Net:
    """A network as torchvision has it, or as the authors' code where it has none."""
    models = import_torchvision().models
    plain = {
        "resnet18": lambda: models.resnet18(num_classes=D),
        "shufflenetv2": lambda: models.shufflenet_v2_x1_0(num_classes=D),
        "googlenet": lambda: models.GoogLeNet(num_classes=D, aux_logits=False, init_weights=False),
    }
    options = plain.get(
        name, lambda: build(name, shape, CLASSES, D).body.to(memory_format=torch.contiguous_format)
    )
    return Net(options()).train()


def as_installed(defaults: bool = False) -> None:
    """Set torch as it is without hpcfed.

    defaults: with its own precision, and cuDNN's benchmark mode as loops for GPUs have it; by
    default products and convolutions are in float32.
    """
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = defaults
    torch.backends.cuda.matmul.allow_tf32 = False
