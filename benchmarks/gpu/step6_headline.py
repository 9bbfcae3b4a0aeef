"""6: benchmarks/gpu.py. The headline: hpcfed over the naive loop and over other simulators.

`FOLDER/env/bin/python benchmarks/gpu/step6_headline.py FOLDER [--parts paper peers ...]`

Goals: 5 times the naive loop, 50,000 examples a second, 5 times pfl-research on its own task. Its
part on several ranks is step 7.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from findings import Findings, carry_out

PARTS = ("paper", "peers", "all", "accuracy")  # what matters most comes first


def work(report: Findings, options: argparse.Namespace) -> None:
    import gpu
    from paired import machine

    report.value("machine", machine())
    small = gpu.Setting(gpu.SMALL, "cpu", 1, (1,), 2, "toy")
    setting = small if report.pretend else gpu.Setting(gpu.PAPER, "cuda", 3, (1,), 20, "cifar10")
    for part in options.parts:
        measured = report.attempt(part, lambda part=part: gpu.measure(setting, (part,)))
        if not measured:
            continue
        rows, more = measured
        report.value(f"{part}: more", more)
        for row in rows:
            report.value(row.what, asdict(row) | {"met": row.met})


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
