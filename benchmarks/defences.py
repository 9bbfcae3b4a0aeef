"""What a defence costs over the mean, for 10, 100 and 1,000 clients: ratios of CPU seconds.

    python benchmarks/defences.py [--clients 10 100 1000]    # about ten minutes; results/robust

Updates of 100,000 values in two tensors. The mean is hpcfed's exact one; each defence takes its
place, with a tenth of the clients taken for attackers. Mean and defence take turns, and the ratio
is that of the fastest turns. FLTrust is not here: its server trains, which depends on the job.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import process_time

import numpy as np
import torch

from hpcfed.comm import Serial
from hpcfed.config.defence import DEFENCES, LEAST
from hpcfed.config.load import load
from hpcfed.core import rng
from hpcfed.core.params import Mean, Params
from hpcfed.engine.decide import world
from hpcfed.engine.setup import federation
from hpcfed.federation.federation import Federation

OUT = Path(__file__).parent / "results" / "robust" / "costs.json"
SHAPES = {"weight": (99, 1000), "bias": (1000,)}
TURNS = {10: 5, 100: 3, 1000: 1}  # by number of clients
SETTINGS = {"centred-clipping": ["--defence.clip", "1"]}
LEFT_OUT = ("fltrust",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=list(TURNS))
    sizes = parser.parse_args().clients
    rows = json.loads(OUT.read_text()) if OUT.exists() else {}
    for n in sizes:
        rows[str(n)] = measure(n)
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(rows, indent=1) + "\n")
        print(n, rows[str(n)], flush=True)


def measure(n: int) -> dict[str, float]:
    """Return the seconds of the mean, and the ratio of each defence to it."""
    g = rng.stream(0, "updates")
    keep = Params({name: torch.zeros(shape) for name, shape in SHAPES.items()})
    terms = [
        (k, Mean.of(Params({name: normal(g, shape) for name, shape in SHAPES.items()})))
        for k in range(n)
    ]
    plain, ratios = start(n, "none"), {}
    for name in DEFENCES:
        if name in LEFT_OUT:
            continue
        defended = start(n, name)
        times = [
            (seconds(plain, terms, keep), seconds(defended, terms, keep))
            for _ in range(TURNS.get(n, 1))
        ]
        of_mean, of_defence = (min(column) for column in zip(*times, strict=True))
        ratios[name] = round(of_defence / of_mean, 2)
    return {"seconds of the mean": round(of_mean, 4), **ratios}


def normal(g: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(g.standard_normal(shape, np.float32))


def start(n: int, defence: str) -> Federation:
    """Return a federation of n clients with a defence, before its first mean."""
    words = ["--algorithm.name", "fedavg", "--models.mix", "mlp", "--clients", str(n)]
    words += ["--data.name", "digits", "--data.partition", "iid", "--defence.by", defence]
    words += SETTINGS.get(defence, [])
    if defence in LEAST:  # it takes a share of attackers
        words += ["--defence.attackers", "0.1"]
    job = load(words, environ={})
    return federation(job, Serial(), world(job, Serial()))


def seconds(fed: Federation, terms: list, keep: Params) -> float:
    """Return the CPU seconds of one mean."""
    fed.begin()
    begin = process_time()
    fed.mean(terms, keep)
    return process_time() - begin


if __name__ == "__main__":
    main()
