"""bfloat16 beside pfl-research's mixed precision (`amp_dtype`), and both without, on CPUs.

    python benchmarks/peers/precision.py --pfl ENVIRONMENT/bin/python [--passes 5]

The task is that of `run.py`. All four sides take turns, on one process and on two; what counts are
the CPU seconds of a round in the first process, in which it trains the cohort, or half of it: the
median of a run's timed rounds, and of the ratios of neighbours. They count what other programs on
the machine do not change much. Written to results/bench/peers-precision.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from run import HERE, LEARNT, prepare

sys.path.insert(0, str(HERE.parent))

from paired import Row, ratio, save
from simulators import PEERS, command, environment, ours

from hpcfed.machine.processor import find_bfloat16

PRECISIONS = ("float32", "bf16")
WARM, TIMEOUT = 2, 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pfl", required=True, type=Path, help="the Python of its environment")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6, help="rounds that are timed in each run")
    parser.add_argument(
        "--data", type=Path, default=HERE.parents[2] / "shared/data/fashion_mnist.h5"
    )
    options = parser.parse_args()
    sides = [
        (peer, python, precision)
        for peer, python in ((PEERS[0], options.pfl), (ours("default"), Path(sys.executable)))
        for precision in PRECISIONS
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        prepare(options.data, file)
        for processes in options.processes:
            seconds: dict[str, list[float]] = {}
            for turn in range(options.passes):
                for peer, python, precision in sides[turn % 4 :] + sides[: turn % 4]:
                    words = [*command(peer, python, processes), str(file), "--folder", folder]
                    words += ["--precision", precision, "--rounds", str(options.rounds)]
                    words += ["--warm", str(WARM), "--processes", str(processes)]
                    value = cpu_seconds(words, Path(folder))
                    seconds.setdefault(f"{peer.name}, {precision}", []).append(value)
                    print(processes, peer.name, precision, f"{value:.3f}", flush=True)
            rows += compare(processes, seconds)
    save("peers-precision", rows, bfloat16=find_bfloat16())


def cpu_seconds(words: list[str], folder: Path) -> float:
    """The median of the CPU seconds of a run's rounds. Raises RuntimeError if it has not learnt."""
    env = environment(folder)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=env, timeout=TIMEOUT)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(lines[-1]) if lines else {"accuracy": 0.0}
    if result["accuracy"] < LEARNT:
        raise RuntimeError(f"{' '.join(words)}: accuracy {result['accuracy']}")
    return statistics.median(result["cpu_seconds"])


def compare(processes: int, seconds: dict[str, list[float]]) -> list[Row]:
    """Each side's float32 over its bf16, and pfl-research over hpcfed in the same precision."""
    theirs, own = ("pfl-research", "hpcfed")
    pairs = [(f"{side}, float32", f"{side}, bf16") for side in (theirs, own)]
    pairs += [(f"{theirs}, {precision}", f"{own}, {precision}") for precision in PRECISIONS]
    details = {"CPU seconds": {who: round(min(values), 4) for who, values in seconds.items()}}
    where = "1 process" if processes == 1 else f"{processes} processes"
    return [
        Row(
            f"{where}: {above} over {below}",
            ratio(seconds[above], seconds[below]),
            details=details,
        )
        for above, below in pairs
    ]


if __name__ == "__main__":
    main()
