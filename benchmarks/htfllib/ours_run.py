"""One run of ours: `ours_run.py METHOD ROUNDS`, on any number of ranks; only the rounds are
watched.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from setting import BATCH, CLIENTS, COMMON, EXAMPLES, LR, MODELS, D

from hpcfed import main
from hpcfed.engine import run


class Watched(run.Loop):
    """A loop that notes when each round's record is written."""

    stamps: list[float]
    accuracy = 0.0

    def write(self, row):
        super().write(row)
        Watched.stamps.append(time.perf_counter())
        Watched.accuracy = float(np.nanmean(row["clients/accuracy"]))


Watched.stamps = []


def words(method: str, rounds: int) -> list[str]:
    """The command line. All clients are evaluated after the last round alone."""
    job = {
        "rounds": rounds,
        "clients": CLIENTS,
        "algorithm.name": method,
        "models.mix": ",".join(f"miniature:{name}" for name in MODELS),
        "models.d": D,
        "data.name": "ours.h5",
        "data.partition": "natural",
        "local.optimiser": "sgd",
        "local.lr": LR,
        "local.batch": BATCH,
        "local.augment": "none",
        "evaluate.every": 10**6,
        "evaluate.before": "false",
        "checkpoint.every": 0,
        "checkpoint.minutes": 0,
        "out": f"out-{method}",
        "overwrite": "true",
        "quiet": "true",
    }
    if method == "fml":
        job["models.proxy"] = f"miniature:{COMMON}"
    return [word for name, value in job.items() for word in (f"--{name}", str(value))]


def report() -> int:
    run.Loop = Watched
    method, rounds = sys.argv[1], int(sys.argv[2])
    status = main.main(words(method, rounds))
    timed = Watched.stamps[:-1]  # the last round has the evaluation
    if status == 0 and len(timed) > 1:
        rate = (len(timed) - 1) * CLIENTS * EXAMPLES / (timed[-1] - timed[0])
        result = {"images_per_second": rate, "accuracy": Watched.accuracy}
        print("\n" + json.dumps(result), flush=True)
    return status


sys.exit(report())
