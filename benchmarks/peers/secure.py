"""SecAgg+ beside Flower's: bytes of all messages by stage, and the error of the mean.

    python benchmarks/peers/secure.py --flower ENVIRONMENT/bin/python   # half a minute

Flower's code runs in its own environment (`requirements/flower.txt`), on one process, with the same
clients, values, weights and drop-outs. Written to results/secure/flower.json:

- flower: bytes that all clients send and receive by stage, keys, shares and vectors alone. They
  must be what our table of costs says for its sizes of keys, shares and values, client by client;
- hpcfed: the bytes of our messages, counted as they pass;
- error: the largest distance of each mean from the exact weighted mean of the values.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hpcfed.comm.exact import scale
from hpcfed.core import rng
from hpcfed.federation.transforms.secure.attendance import ANSWERS, INPUTS, STAGES, Attendance
from hpcfed.federation.transforms.secure.costs import Cost, Sizes, pairwise_cost
from hpcfed.federation.transforms.secure.pairwise import PairwiseSum
from hpcfed.federation.transforms.secure.sums import total

HERE = Path(__file__).parent
OUT = HERE.parent / "results" / "secure" / "flower.json"
N, SHARES, THRESHOLD, WORDS, DROPPED = 20, 11, 6, 100_000, (3, 7)
BOUND = 1.0  # of values; those here are below it


class Neighbours:
    """Flower's graph of a run, drawn by Flower."""

    def __init__(self, by_client: Mapping[str, Sequence[int]]) -> None:
        self._by_client = {int(k): list(js) for k, js in by_client.items()}

    def neighbours(self, k: int) -> list[int]:
        return self._by_client[k]

    def count(self, k: int, clients: Set[int]) -> int:
        return sum(j in clients for j in self._by_client[k])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", required=True, help="the Python of an environment with flwr")
    python = parser.parse_args().flower
    values = rng.stream(0, "values").normal(0, 0.1, (N, WORDS)).astype(np.float32)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "values.npy"
        np.save(file, values)
        script = [str(HERE / "secure_flower.py"), str(file)]
        script += map(str, (SHARES, THRESHOLD, *DROPPED))
        lines = subprocess.run([python, *script], check=True, capture_output=True, text=True).stdout
    flower = json.loads(lines.splitlines()[-1])
    graph = Neighbours(flower["neighbours"])
    survivors = [k for k in range(N) if k not in DROPPED]
    attendance = Attendance(range(N), range(N), survivors, survivors)
    formula = by_formula(flower["parts"], attendance, graph)
    compare(flower["bytes"], formula)
    costs, error = ours(values, attendance, graph)
    result = {
        "clients": N,
        "neighbours": SHARES - 1,
        "values": WORDS,
        "dropped": len(DROPPED),
        "bytes": {"flower": by_stage(formula), "hpcfed": by_stage(costs)},
        "flower_sizes": flower["parts"],
        "error": {"flower": flower["error"], "hpcfed": error},
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1) + "\n")
    print(OUT.read_text())


def by_formula(
    parts: Mapping[str, int], attendance: Attendance, graph: Neighbours
) -> dict[int, Cost]:
    """Return the bytes of our table with Flower's sizes.

    Its shares of a seed and of a private key differ in size, and it sends 8 bytes a value, of which
    one is the weight, beside the headers of NumPy's files.
    """
    share = parts["seed_share"]
    value = parts["vector"] / (WORDS + 1)
    sizes = Sizes(key=parts["key"], share=share, tag=parts["sealed"] - 2 * share, value=value)
    costs = pairwise_cost(attendance, graph, WORDS + 1, range(N), sizes=sizes)
    for k in attendance.answers:
        costs[k].up[ANSWERS] += (parts["key_share"] - share) * graph.count(k, set(DROPPED))
    for k in attendance.inputs:
        costs[k].up[INPUTS] = parts["vector"]
    return costs


def compare(counted: Sequence[Mapping[str, list[int]]], formula: Mapping[int, Cost]) -> None:
    """Raise SystemExit unless Flower's bytes are those of the formula, client by client.

    What the server sends in one stage of the formula opens Flower's next stage; the bits that say
    who has sent are numbers there, which are not counted.
    """
    for i, stage in enumerate(STAGES):
        for name, (down, up) in counted[i].items():
            cost = formula[int(name)]
            before = cost.down[i - 1] if 0 < i < ANSWERS else 0
            if (down, up) != (before, cost.up[i]):
                raise SystemExit(
                    f"client {name}, {stage}: Flower {down} down and {up} up, formula {before} "
                    f"and {cost.up[i]}"
                )


def by_stage(costs: Mapping[int, Cost]) -> dict[str, Any]:
    return {
        stage: {
            "up": sum(cost.up[i] for cost in costs.values()),
            "down": sum(cost.down[i] for cost in costs.values()),
        }
        for i, stage in enumerate(STAGES)
    }


def ours(
    values: np.ndarray, attendance: Attendance, graph: Neighbours
) -> tuple[dict[int, Cost], float]:
    """Return the bytes of our sum of the same values, and the error of its mean."""
    weights = np.array([50.0 + 10 * k for k in range(N)])
    execution = PairwiseSum(attendance, WORDS + 1, graph, THRESHOLD, range(N), draw, dict)
    s = scale(BOUND * weights.max(), N)
    integers = {k: lambda k=k: on_grid(values[k], weights[k], s) for k in attendance.inputs}
    sums = total(execution, integers, lambda words: None) / math.ldexp(1, s)
    mean, senders = sums[:-1] / sums[-1], list(attendance.inputs)
    exact = np.average(values[senders].astype(float), 0, weights[senders])
    return execution.costs, float(np.abs(mean - exact).max())


def draw(k: int) -> Any:
    return rng.stream(0, "secure keys", k).bytes


def on_grid(values: np.ndarray, weight: float, s: int) -> np.ndarray:
    """Return values times weight, and the weight, as integers of the grid, [m + 1] uint64."""
    row = np.append(values.astype(float) * weight, weight)
    return np.rint(row * math.ldexp(1, s)).astype(np.int64).view(np.uint64)


if __name__ == "__main__":
    main()
