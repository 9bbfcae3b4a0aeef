"""Client drift where the optimum is known: clients with quadratics of different curvature and
centre, and how far the global model of each method stays from the optimum of their sum.

    python benchmarks/quadratic.py    # about a minute; runs/quadratic, the table and the picture

Table and picture are made of the result files alone. A method's `loss` is replaced, all else is
hpcfed's: local steps, rounds, means.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import hpcfed
from hpcfed.algorithms import load
from hpcfed.algorithms.base import RoundBased
from hpcfed.core import rng
from hpcfed.report.figures import plotting
from hpcfed.storage import results

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "results" / "quadratic" / "distance.csv"
RUNS, PICTURE = ROOT / "runs" / "quadratic", ROOT / "docs" / "pages" / "gallery" / "quadratic.png"
CLIENTS, ROUNDS = 6, 40
METHODS: dict[str, dict[str, Any]] = {  # what stands for the same strength in each
    "fedavg": {},
    "fedprox": {"mu": 1.0},
    "scaffold": {},
    "feddyn": {"alpha": 1.0},
    "fedpd": {"eta": 1.0},
    "fedsplit": {"s": 1.0},
}
FIELDS: dict[str, Any] = {
    "clients": CLIENTS,
    "rounds": ROUNDS,
    "models": {"mix": ("logistic",)},
    "data": {"name": "digits", "partition": "iid", "train_limit": 60},
    "local": {"optimiser": "sgd", "lr": 0.3, "steps": 10},
    "evaluate": {"before": False, "every": 1},
    "quiet": True,
    "overwrite": True,
}


@cache
def problem(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Curvatures and centres of the clients, each [CLIENTS, size]."""
    g = rng.torch_stream(0, "quadratic", device=torch.device("cpu"))
    return torch.rand(CLIENTS, size, generator=g) + 0.5, torch.randn(CLIENTS, size, generator=g)


def flatten(tensors: Any) -> torch.Tensor:
    return torch.cat([v.detach().flatten().cpu() for v in tensors])


class OnQuadratics(RoundBased):
    """The clients' quadratics as losses; runs record the distance of the model to the optimum."""

    def loss(self, client: Any, state: Any, model: Any, x: Any, y: Any) -> torch.Tensor:
        w = torch.cat([p.flatten() for p in model.parameters()])
        curve, centre = (row[client.id] for row in problem(len(w)))
        return 0.5 * (curve * (w - centre).square()).sum()

    def columns(self, fed: Any, state: Any) -> dict[str, float]:
        w = flatten(getattr(state, "x", state).values())
        curve, centre = problem(len(w))
        best = (curve * centre).sum(0) / curve.sum(0)
        return {"to_optimum": float((w - best).norm())}


def on_quadratics(name: str) -> type:
    """The method on quadratics; what it adds to the loss (FedProx) stays."""
    base = load(name)
    return type(base.__name__, (base, OnQuadratics), {"__module__": __name__})


def compute(name: str) -> None:
    method = on_quadratics(name)(weighting="uniform", **METHODS[name])
    hpcfed.run(algorithm=method, out=RUNS / name, **FIELDS)


def distances() -> dict[str, list[float]]:
    """Each method's distance to the optimum after every round, from the result files."""
    return {name: results.load(RUNS / name).column("rounds/to_optimum") for name in METHODS}


def write(far: dict[str, list[float]]) -> None:
    """The table: a row a round, a column a method."""
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    with TABLE.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["round", *far])
        for t, row in enumerate(zip(*far.values(), strict=True), start=1):
            rows.writerow([t, *(f"{value:.4g}" for value in row)])


def draw(far: dict[str, list[float]]) -> None:
    """The picture."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    ax = figure.subplots()
    for i, values in enumerate(far.values()):
        ax.semilogy(range(1, len(values) + 1), values, linewidth=1.2, **plotting.style(i))
    plotting.frame(ax, "round", "distance to the optimum of all clients")
    plotting.legend(figure, [*far])  # beside the lines, over none of them
    figure.savefig(PICTURE, dpi=150)


def main() -> None:
    for name in METHODS:
        compute(name)
    far = distances()
    write(far)
    draw(far)
    print(TABLE, PICTURE, sep="\n")


if __name__ == "__main__":
    main()
