"""`hpcfed plan` against what is measured here: seconds of a round on more ranks, and over slower
networks.

    python benchmarks/plan.py                 # as root, on two quiet cores: about 15 minutes
    python benchmarks/plan.py --passes 1 --only cores     # the cases without a network: nothing is
    written

Ranks: 1, 2, 4 and 8 on this machine, more than it has cores too. Networks: two nodes of one core
each (`nodes.py`), 1 or 2 ranks on each, joined by a link of given latency and bandwidth; the plan
is told what MPI sees of it (`link.py`). In each pass every case runs, and just before it a short
run on two ranks that measures the costs, for a machine's speed drifts; predicted over measured is
of such a pair. Seconds are those of result files, medians over rounds, checkpoints left out. A goal
of 1.15: within 15 %, either way.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # to be run from anywhere

from benchmarks.launch import ROOT, SETTINGS, mpirun
from benchmarks.nodes import Nodes, missing
from benchmarks.paired import Ratio, Row, machine, ratio, save
from benchmarks.scaling import WARM, measure
from hpcfed.config.load import load
from hpcfed.launch.plan.command import costs_and_demand, predict_cluster
from hpcfed.launch.plan.predict import Cluster, Network

ROUNDS, MOST = 3, 1.15
FIELDS = [
    "--algorithm.name",
    "fedavg",
    "--models.mix",
    "cnn",
    "--models.d",
    "2048",
    "--clients",
    "16",
    "--data.partition",
    "iid",
    "--local.epochs",
    "2",
    "--evaluate.every",
    "1",
    "--checkpoint.every",
    "0",
    "--run.rebalance",
    str(WARM),
    "--rounds",
    str(WARM + ROUNDS),
]
HERE = Network(1e-6, 5e9)  # not used: there is one node


class Case(NamedTuple):
    """So many ranks on each of some nodes; network: latency in seconds, bandwidth in bytes a
    second.
    """

    nodes: int
    each: int
    network: Network = HERE

    @property
    def name(self) -> str:
        if self.nodes == 1:
            return f"{self.each} ranks on {machine()['cores']} cores"
        far = self.network
        return (
            f"2 nodes of {self.each} ranks, {1e3 * far.latency:g} ms, {8e-6 * far.bandwidth:g} Mb/s"
        )


RANKS = [Case(1, each) for each in (1, 2, 4, 8)]
NETWORKS = [
    Case(2, each, Network(latency, speed))
    for each in (1, 2)
    for latency, speed in ((0.0, 50e6), (0.0, 12.5e6), (0.005, 50e6), (0.02, 12.5e6))
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument(
        "--only", default="", help="only cases whose name contains this, such as '2 ranks, 0 ms'"
    )
    options = parser.parse_args()
    cases = [case for case in RANKS + NETWORKS if options.only in case.name]
    lacking = missing()
    if lacking and any(case.nodes > 1 for case in cases):
        print(f"no networks: {lacking} is not here", file=sys.stderr)
        cases = [case for case in cases if case.nodes == 1]
    seconds: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory(prefix="plan-") as folder:
        for i in range(options.passes):
            for case in cases[i % len(cases) :] + cases[: i % len(cases)]:
                seconds[case].append(one := compared(case, Path(folder)))
                print(
                    f"pass {i + 1} of {options.passes}: {case.name}: predicted "
                    f"{one['predicted']:.3g} s, measured "
                    f"{one['measured']:.3g} s",
                    file=sys.stderr,
                    flush=True,
                )
    rows = [row(case, passes) for case, passes in seconds.items()]
    save("plan", rows, whole=not options.only)


def compared(case: Case, folder: Path) -> dict[str, Any]:
    """Seconds of a round of one case, measured and predicted, and both by part."""
    trial = folder / "trial"
    run(f"{mpirun()} -np 2", trial)
    link = Nodes(case.network.latency, case.network.bandwidth) if case.nodes > 1 else nullcontext()
    with link as nodes:
        launcher = nodes.launcher(case.each) if nodes else f"{mpirun()} -np {{ranks}}"
        network = seen(launcher, case) if nodes else HERE
        measured = run(launcher, folder / "run", case.nodes * case.each)
    job = load(FIELDS)
    costs, asked = costs_and_demand(job, trial, FIELDS)
    cores = 1 if case.nodes > 1 else costs.cores
    plan = predict_cluster(asked, costs, Cluster(case.nodes, case.each, cores, network))
    parts = {
        name: [plan.parts[name], measured["parts"][name]]
        for name in ("train", "evaluate", "wait", "communicate")
    }
    seconds = {
        "predicted": plan.seconds,
        "measured": measured["seconds"] - measured["parts"]["checkpoint"],
    }
    return seconds | {"parts": parts, "network": network}


def seen(launcher: str, case: Case) -> Network:
    """The link as MPI sees it between the ranks of this case."""
    start, script = (
        shlex.split(launcher.format(ranks=case.nodes * case.each)),
        ROOT / "benchmarks" / "link.py",
    )
    done = subprocess.run(
        [*start, sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | SETTINGS,
        timeout=120,
    )
    return Network(*json.loads(done.stdout))


def run(launcher: str, folder: Path, ranks: int = 2) -> dict[str, Any]:
    """One run of the job, as `scaling.measure` tells it."""
    words = [
        *shlex.split(launcher.format(ranks=ranks)),
        sys.executable,
        "-m",
        "hpcfed.main",
        *FIELDS,
    ]
    return measure([*words, "--overwrite", "--quiet", "--out", str(folder)], folder)


def row(case: Case, passes: list[dict[str, Any]]) -> Row:
    """One line; the ratio is the larger of predicted over measured and its inverse."""
    plain = ratio([p["predicted"] for p in passes], [p["measured"] for p in passes])
    off = sorted(max(value, 1 / value) for value in plain)
    middle = max(plain.median, 1 / plain.median)
    details = {
        "predicted / measured": list(plain),
        "seconds measured": [p["measured"] for p in passes],
        "parts, [predicted, measured]": passes[len(passes) // 2]["parts"],
        "link, [seconds, bytes/s]": [list(vars(p["network"]).values()) for p in passes],
    }
    return Row(
        f"{case.name}: off by",
        Ratio(middle, min(off[0], middle), off[-1]),
        most=MOST,
        details=details,
    )


if __name__ == "__main__":
    main()
