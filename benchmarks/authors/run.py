"""A FedClassAvg round of the authors' public code and of ours, side by side: seconds per round,
taking turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "peers")]

from paired import Row, interleaved, ratio, save  # noqa: E402
from setting import RANKS, WARM, prepare  # noqa: E402
from simulators import environment, launcher, output  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--theirs", type=Path, required=True, help="the folder of the authors' repository"
    )
    parser.add_argument(
        "--engines",
        nargs="+",
        default=["eager", "auto"],
        help="of ours; default: the job's default",
    )
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="rounds that are timed in each run")
    parser.add_argument(
        "--timeout", type=int, default=600, help="seconds after which a run is given up"
    )
    parser.add_argument(
        "--data", type=Path, default=HERE.parents[2] / "shared/data/fashion_mnist.h5"
    )
    return parser.parse_args()


def seconds(folder: Path, timeout: int, script: str, *words: str) -> float:
    """Seconds of one round in one run. Ends the benchmark where there is no result: there is
    nothing to compare.
    """
    start = [*launcher(Path(sys.executable), RANKS), str(HERE / script), *words]
    out = output(start, environment(folder), timeout, folder)
    lines = [line for line in out.splitlines() if line.startswith('{"seconds_per_round"')]
    if not lines:
        sys.exit(f"{script}: no result: {out[-2000:]}")
    print(f"{script} {words[-1]}: {lines[-1]}", flush=True)
    return json.loads(lines[-1])["seconds_per_round"]


def workplace(folder: Path, options: argparse.Namespace) -> None:
    """What both expect in the folder where they run: their settings and both copies of the data."""
    shutil.copytree(options.theirs / "configs", folder / "configs")
    prepare(options.data, folder)


def rows(rates: dict[str, list[float]]) -> list[Row]:
    theirs = rates.pop("theirs")
    both = {
        name: {"seconds": statistics.median(values), "theirs": statistics.median(theirs)}
        for name, values in rates.items()
    }
    return [
        Row(
            f"a FedClassAvg round, authors' code over {name}",
            ratio(theirs, values),
            least=2.0,
            details=both[name],
        )
        for name, values in rates.items()
    ]


def main() -> None:
    options = arguments()
    if not (options.theirs / "src/fedclassavg.py").exists():
        sys.exit(
            f"{options.theirs}: has no src/fedclassavg.py; README.md here tells where to get it"
        )
    rounds, rates = (
        str(WARM + options.rounds),
        {"theirs": []} | {f"hpcfed ({e})": [] for e in options.engines},
    )
    with tempfile.TemporaryDirectory() as place:
        workplace(Path(place), options)
        run = partial(seconds, Path(place), options.timeout)
        turns = {
            "theirs": lambda: rates["theirs"].append(
                run("theirs_run.py", str(options.theirs.resolve()), rounds)
            )
        }
        for engine in options.engines:
            turns[f"hpcfed ({engine})"] = partial(
                ours, run, rates[f"hpcfed ({engine})"], rounds, engine
            )
        interleaved(turns, options.passes, warm=0)
    save("authors", rows(rates), rounds=options.rounds)


def ours(run: partial, rates: list[float], rounds: str, engine: str) -> None:
    """Our turn."""
    rates.append(run("ours_run.py", rounds, engine))


if __name__ == "__main__":
    main()
