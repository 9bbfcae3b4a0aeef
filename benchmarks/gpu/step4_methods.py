"""4: every method, eager and graphed, at toy size. Decides whether all tensors are on the device.

`FOLDER/env/bin/python benchmarks/gpu/step4_methods.py FOLDER [--only fedavg moon ...]`
"""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import redirect_stderr
from io import StringIO

import numpy as np
from findings import Findings, carry_out

FEW = ("fedclassavg", "fedavg")  # of a trial on the CPU
DOUBTED = re.compile(r"(\w+) does not have a deterministic implementation")  # torch's warning


def work(report: Findings, options: argparse.Namespace) -> None:
    from hpcfed.algorithms import ALGORITHMS
    from hpcfed.models import MODELS, Entry

    MODELS["small"] = Entry("tests.contract.toy:small", "of the tests", least=8, stem=True)
    wanted = options.only or (FEW if report.pretend else list(ALGORITHMS))
    for method in wanted:
        report.attempt(method, lambda method=method: compare(report, method))


def compare(report: Findings, method: str) -> None:
    """Run one method by both engines; its steps have to be captured if they can be recorded on a
    CPU, and those that train eagerly are named. Kernels that are not known to be deterministic are
    named too, and losses with models without dropout are held against those of the CPU: where a
    method draws on the device, they differ by more than rounding.
    """
    from hpcfed.comm import Serial
    from tests.contract import toy

    outcomes, lines = {}, {}
    runs = (("eager", report.kind), ("graphed", report.kind), ("traced", "cpu"))
    for engine, device in runs:
        more = ("--rounds", "2", "--local.batch", "8", "--training.engine", engine)
        with redirect_stderr(StringIO()) as stderr:
            outcomes[engine] = toy.run(Serial(), toy.job(method, "--run.device", device, *more))
        lines[engine] = stderr.getvalue().splitlines()
    differences = toy.differences(outcomes["eager"], outcomes["graphed"])
    if differences:
        report.value(f"{method}: differences", differences[:20])
    report.check(method, not differences)
    on_device = [*lines["eager"], *lines["graphed"]]
    kernels = {name for line in on_device for name in DOUBTED.findall(line)}
    if kernels:
        report.value(f"{method}: not known to be deterministic", sorted(kernels))
    report.value(f"{method}: losses beside those of a CPU", apart(report, method))
    fallback = {
        engine: [line for line in lines[engine] if "eager engine" in line] for engine in lines
    }
    if fallback["graphed"]:
        report.value(f"{method}: trains eagerly", fallback["graphed"])
    if not fallback["traced"]:
        report.check(f"{method}: its steps are captured", not fallback["graphed"])


def apart(report: Findings, method: str) -> float | str:
    """Return the largest relative difference of the losses on the device and on the CPU, with
    models without dropout; if the method needs others, what it says.
    """
    from hpcfed import ConfigError
    from hpcfed.comm import Serial
    from tests.contract import toy

    more = ("--rounds", "2", "--training.engine", "eager", *toy.without_norm(method))
    try:
        losses, cpu = (
            toy.run(Serial(), toy.job(method, "--run.device", device, *more)).column("train_loss")
            for device in (report.kind, "cpu")
        )
    except ConfigError as why:
        return str(why)
    return float(np.nanmax(np.abs(losses - cpu) / (np.abs(cpu) + 1e-3)))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="methods")


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
