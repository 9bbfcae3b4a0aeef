"""Client training through hpcfed against the plain eager loop: how many times as fast, engine by
engine.

`python benchmarks/faster.py [--passes 5] [--engines auto eager traced stacked] [--only cnn
logistic]`

A round of training alone, one rank, one thread, each side in its own process, in turns. ResNet-18
trains on two augmented views with FedClassAvg's loss and clients' own bodies; the raw loop has them
made beforehand, and then by torchvision on PIL images inside the loop, as the authors' code does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from apart import Apart
from augment import pipeline
from cases import CNN, LOGISTIC, MLP, RESNET18, Case
from overhead import raw, steps
from paired import Row, interleaved, ratio, save
from rawloop import RawLoop
from torch import Tensor

from hpcfed.config.job import Job
from hpcfed.core.compat import import_torchvision
from hpcfed.training.losses import supcon

TWO_VIEWS = replace(
    RESNET18,
    n=128,
    flags=("--algorithm.name", "fedclassavg", "--algorithm.rho", "0", "--local.augment", "simclr"),
)
CASES = {"cnn": CNN, "resnet18": TWO_VIEWS, "logistic": LOGISTIC, "mlp": MLP}
# mlp has 265,000 weights: memory is what its steps wait for
LEAST = {"cnn": 1.3, "resnet18": 1.3, "logistic": 3.0, "mlp": 1.5}
ENGINES = ("auto", "eager", "traced", "stacked") if "training" in Job.model_fields else ("eager",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES[:2])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    rows = [row for name in options.only for row in compare(name, options.engines, options.passes)]
    save("faster", rows, whole=set(options.only) == set(CASES))


def compare(name: str, engines: tuple[str, ...], passes: int) -> list[Row]:
    """The rows of one model: each raw loop over each engine; only `auto` has a goal."""
    case = CASES[name]
    loops = (
        {"raw loop": made} | {"raw loop with PIL": by_pil}
        if name == "resnet18"
        else {"raw loop": raw}
    )
    seconds = timed(case, engines, loops, passes)
    details = {"clients": case.clients, "examples": case.n, "batch": case.batch}
    details["seconds"] = {who: sorted(values)[passes // 2] for who, values in seconds.items()}
    return [
        Row(
            f"{name}: {loop} over hpcfed, engine {engine}",
            ratio(seconds[loop], seconds[engine]),
            least=LEAST.get(name) if engine == "auto" else None,
            details=details,
        )
        for engine in engines
        for loop in loops
    ]


def timed(
    case: Case, engines: tuple[str, ...], loops: Mapping[str, Callable], passes: int
) -> dict[str, list[float]]:
    """Seconds of a round of each engine and each raw loop, all in turns."""
    sides = {engine: Apart(steps, case, engine) for engine in engines}
    sides |= {name: Apart(loop, case) for name, loop in loops.items()}
    seconds = interleaved(sides, passes)
    for side in sides.values():
        side.close()
    return seconds


def made(case: Case) -> Callable[[], None]:
    return Contrastive(case).round


def by_pil(case: Case) -> Callable[[], None]:
    return Pictures(case).round


class Contrastive(RawLoop):
    """Cross-entropy and supervised contrastive loss on two views, which are there already; only
    heads are averaged.
    """

    def __init__(self, case: Case):
        super().__init__(case)
        self.states = [dict(self.state) for _ in self.data]

    def round(self) -> None:
        """Each client continues from its own body and the mean head."""
        heads = []
        for k, (x, y) in enumerate(self.data):
            self.model.load_state_dict(
                self.states[k] | {n: v for n, v in self.state.items() if n.startswith("1.")}
            )
            self.losses[k] = self.train(x, y)
            self.states[k] = {name: v.clone() for name, v in self.model.state_dict().items()}
            heads.append({name: v for name, v in self.states[k].items() if name.startswith("1.")})
        self.state = self.state | {
            n: torch.stack([head[n] for head in heads]).mean(0) for n in heads[0]
        }

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        first, second = self.views(x)
        body, head = self.model
        z = body(torch.cat([first, second]))
        return F.cross_entropy(head(z[: len(y)]), y) + supcon(z, torch.cat([y, y]))

    def views(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.flip(3)


class Pictures(Contrastive):
    """The views are drawn in the loop, image by image."""

    def __init__(self, case: Case):
        super().__init__(case)
        import_torchvision()
        self.transform = pipeline(case.shape)

    def views(self, x: Tensor) -> tuple[Tensor, Tensor]:
        from torchvision.transforms.functional import to_pil_image

        pictures = [to_pil_image(image) for image in x.clamp(0, 1)]
        first, second = (
            torch.stack([self.transform(picture) for picture in pictures]) for _ in range(2)
        )
        return first, second


if __name__ == "__main__":
    main()
