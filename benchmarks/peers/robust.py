"""Robust rules beside Flower's and FederatedScope's, on the same uploads.

    python benchmarks/peers/robust.py --flower ENVIRONMENT/bin/python --federatedscope CHECKOUT

Flower's functions run in its own environment (`requirements/flower.txt`). Of FederatedScope the
files of its aggregators are executed, from a checkout of github.com/alibaba/FederatedScope, with a
base class that averages. Of 20 clients with updates of 7,850 values, 4 send the opposite of what
the others send. Written to results/robust/peers.json: for each library and rule the largest
difference between its result and ours.

FederatedScope's Krum adds up distances tensor by tensor, without squares, and its Bulyan trims
around the mean: they may choose other clients than the papers' formulas, as they do here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import types
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core import rng
from hpcfed.core.params import Mean, Params
from hpcfed.engine.decide import world
from hpcfed.engine.setup import federation

OUT = Path(__file__).parents[1] / "results" / "robust" / "peers.json"
N, ATTACKERS = 20, 4
RULES = ("median", "trimmed-mean", "krum", "multi-krum", "bulyan")
SCOPE = {
    "median": ("median_aggregator", "MedianAggregator", "_aggre_with_median"),
    "trimmed-mean": ("trimmedmean_aggregator", "TrimmedmeanAggregator", "_aggre_with_trimmedmean"),
    "krum": ("krum_aggregator", "KrumAggregator", "_para_avg_with_krum"),
    "bulyan": ("bulyan_aggregator", "BulyanAggregator", "_aggre_with_bulyan"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", required=True, help="the Python of an environment with flwr")
    parser.add_argument("--federatedscope", type=Path, required=True, help="its checkout")
    paths = parser.parse_args()
    values = uploads()
    ours = {rule: hpcfed(rule, values) for rule in RULES}
    with TemporaryDirectory() as folder:
        file, out = Path(folder) / "uploads.npz", Path(folder) / "results.npz"
        np.savez(file, **values)
        script = Path(__file__).with_name("robust_flower.py")
        subprocess.run([paths.flower, script, file, str(ATTACKERS), out], check=True)
        with np.load(out) as arrays:
            flower = {rule: {name: arrays[f"{rule}_{name}"] for name in values} for rule in RULES}
    theirs = {"flower": flower, "federatedscope": federatedscope(paths.federatedscope, values)}
    report = {
        library: {rule: difference(result, ours[rule]) for rule, result in results.items()}
        for library, results in theirs.items()
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(report, indent=2) + "\n")
    print(OUT.read_text())


def uploads() -> dict[str, np.ndarray]:
    """Return the updates of all clients, [n, ...] by tensor."""
    g = rng.stream(0, "uploads")
    values = {
        "weight": g.normal(0.1, 1.0, (N, 10, 784)).astype(np.float32),
        "bias": g.normal(0.1, 1.0, (N, 10)).astype(np.float32),
    }
    for value in values.values():
        value[-ATTACKERS:] = -3 * value[:-ATTACKERS].mean(axis=0)
        value[-ATTACKERS:] += g.normal(0, 1.5, value[-ATTACKERS:].shape).astype(np.float32)
    return values


def hpcfed(rule: str, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what our server gets in the place of the mean."""
    words = ["--algorithm.name", "fedavg", "--models.mix", "mlp", "--clients", str(N)]
    words += ["--defence.by", rule]
    if rule != "median":
        words += ["--defence.attackers", str(ATTACKERS / N)]
    job = load(words, environ={})
    fed = federation(job, Serial(), world(job, Serial()))
    terms = [
        (k, Mean.of(Params({name: torch.from_numpy(v[k]) for name, v in values.items()})))
        for k in range(N)
    ]
    keep = Params({name: torch.zeros(value.shape[1:]) for name, value in values.items()})
    fed.begin()
    return {name: value.numpy() for name, value in fed.mean(terms, keep).items()}


def federatedscope(checkout: Path, values: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the results of FederatedScope's aggregators."""
    base = types.ModuleType("federatedscope.core.aggregators")
    base.ClientsAvgAggregator = Average  # type: ignore[attr-defined]
    for name in ("federatedscope", "federatedscope.core"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[base.__name__] = base
    results = {}
    for rule, (module, cls, method) in SCOPE.items():
        path = checkout / "federatedscope" / "core" / "aggregators" / f"{module}.py"
        spec = spec_from_file_location(module, path)
        assert spec and spec.loader
        code = module_from_spec(spec)
        spec.loader.exec_module(code)
        models = [
            (1, {name: torch.from_numpy(v[k].copy()) for name, v in values.items()})
            for k in range(N)
        ]
        result = getattr(getattr(code, cls)(config=settings()), method)(models)
        results[rule] = {name: value.numpy() for name, value in result.items()}
    return results


class Average:
    """The base class of FederatedScope's aggregators, as far as they use it."""

    def __init__(self, model: Any = None, device: str = "cpu", config: Any = None) -> None:
        self.cfg = config

    def _para_weighted_avg(self, models: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
        return {
            name: torch.stack([model[name] for _, model in models]).mean(dim=0)
            for name in models[0][1]
        }


def settings() -> Any:
    """Return the part of FederatedScope's configuration that its aggregators read."""
    return types.SimpleNamespace(
        federate=types.SimpleNamespace(client_num=N, sample_client_rate=1.0),
        aggregator=types.SimpleNamespace(
            byzantine_node_num=ATTACKERS,
            BFT_args=types.SimpleNamespace(
                trimmedmean_excluded_ratio=ATTACKERS / N, krum_agg_num=1
            ),
        ),
    )


def difference(theirs: dict[str, np.ndarray], ours: dict[str, np.ndarray]) -> float:
    """Return the largest difference of two results."""
    return max(float(np.abs(theirs[name] - ours[name]).max()) for name in ours)


if __name__ == "__main__":
    main()
