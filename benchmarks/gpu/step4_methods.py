"""4: every method, eager and graphed, at toy size. Decides whether all tensors are on the device.

`FOLDER/env/bin/python benchmarks/gpu/step4_methods.py FOLDER [--only fedavg moon ...]`
"""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stderr
from io import StringIO

from findings import Findings, carry_out

FEW = ("fedclassavg", "fedavg")  # of a trial on the CPU


def work(report: Findings, options: argparse.Namespace) -> None:
    from hpcfed.algorithms import ALGORITHMS
    from hpcfed.models import MODELS, Entry

    MODELS["small"] = Entry("tests.contract.toy:small", "of the tests", least=8, stem=True)
    wanted = options.only or (FEW if report.pretend else list(ALGORITHMS))
    for method in wanted:
        report.attempt(method, lambda method=method: compare(report, method))


def compare(report: Findings, method: str) -> None:
    """Run one method by both engines; its steps have to be captured if its client's round is the
    default one, and otherwise those that train eagerly are named.
    """
    from hpcfed.algorithms import load
    from hpcfed.comm import Serial
    from tests.contract import toy

    where = ("--run.device", report.kind, "--rounds", "2", "--local.batch", "8")
    outcomes, stderr = {}, StringIO()
    for engine in ("eager", "graphed"):
        with redirect_stderr(stderr):
            job = toy.job(method, *where, "--training.engine", engine)
            outcomes[engine] = toy.run(Serial(), job)
    differences = toy.differences(outcomes["eager"], outcomes["graphed"])
    if differences:
        report.value(f"{method}: differences", differences[:20])
    report.check(method, not differences)
    eager = [line for line in stderr.getvalue().splitlines() if "eager" in line]
    if eager:
        report.value(f"{method}: trains eagerly", eager)
    if load(method)().default_client_round:
        report.check(f"{method}: its steps are captured", not eager)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="methods")


if __name__ == "__main__":
    sys.exit(carry_out(__file__, __doc__, work, options))
