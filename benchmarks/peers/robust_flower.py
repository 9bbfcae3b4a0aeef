"""Flower's robust rules on the uploads of a NumPy file; called by `robust.py`, with flwr.

Arguments: the file with arrays `weight` [n, ...] and `bias` [n, ...], the number of attackers, and
the file to write, with an array `RULE_weight` and `RULE_bias` for each rule.
"""

from __future__ import annotations

import sys

import numpy as np
from flwr.server.strategy.aggregate import (
    aggregate_bulyan,
    aggregate_krum,
    aggregate_median,
    aggregate_trimmed_avg,
)


def main(file: str, attackers: int, out: str) -> None:
    with np.load(file) as arrays:
        uploads = [
            ([weight, bias], 1)
            for weight, bias in zip(arrays["weight"], arrays["bias"], strict=True)
        ]
    n = len(uploads)
    results = {
        "median": aggregate_median(uploads),
        "trimmed-mean": aggregate_trimmed_avg(uploads, attackers / n + 1e-9),
        "krum": aggregate_krum(uploads, attackers, 0),
        "multi-krum": aggregate_krum(uploads, attackers, n - attackers - 2),
        "bulyan": aggregate_bulyan(uploads, attackers, aggregate_krum, to_keep=0),
    }
    flat = {
        f"{rule}_{name}": value
        for rule, values in results.items()
        for name, value in zip(("weight", "bias"), values, strict=True)
    }
    np.savez(out, **flat)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
