"""FedProto, LG-FedAvg and FML with different models by HtFLlib and by hpcfed, taking turns: images
per second and accuracy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "peers")]

from paired import Row, interleaved, ratio, save  # noqa: E402
from setting import METHODS, prepare  # noqa: E402
from simulators import environment, launcher, output  # noqa: E402

Measured = dict[tuple[str, str], list[dict]]  # by program and method, one entry a pass


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--theirs", type=Path, required=True, help="HtFLlib's repository: a clone, or a bare one"
    )
    parser.add_argument("--only", nargs="+", default=[*METHODS], choices=METHODS)
    parser.add_argument("--cores", type=int, default=2, help="ranks of ours, threads of theirs")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of each run")
    parser.add_argument(
        "--timeout", type=int, default=600, help="seconds after which a run is given up"
    )
    parser.add_argument(
        "--data", type=Path, default=HERE.parents[2] / "shared/data/fashion_mnist.h5"
    )
    return parser.parse_args()


def unpack(theirs: Path, folder: Path) -> None:
    """Put HtFLlib's `system` into the folder, as it is in the repository's newest commit."""
    for part in ("system/flcore", "system/utils"):
        words = ["git", "-C", str(theirs), "archive", f"--prefix={part}/", f"HEAD:{part}"]
        packed = subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)


def one(
    measured: Measured, who: str, method: str, folder: Path, options: argparse.Namespace
) -> None:
    """One run of one of the two. Ends the benchmark where there is no result."""
    python, variables = Path(sys.executable), environment(folder)
    path = [
        variables["PYTHONPATH"],
        str(HERE),
        str(HERE.parent / "evidence"),
        str(folder / "system"),
    ]
    variables |= {"PYTHONPATH": ":".join(path), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    start = [str(python)] if who == "HtFLlib" else launcher(python, options.cores)
    variables["OMP_NUM_THREADS"] = str(options.cores if who == "HtFLlib" else 1)
    script = "theirs_run.py" if who == "HtFLlib" else "ours_run.py"
    words = [*start, str(HERE / script), method, str(options.rounds)]
    out = output(words, variables, options.timeout, folder)
    lines = [line for line in out.splitlines() if line.startswith('{"images_per_second"')]
    if not lines:
        sys.exit(f"{who}, {method}: no result: {out[-2000:]}")
    print(f"{who}, {method}: {lines[-1]}", flush=True)
    measured.setdefault((who, method), []).append(json.loads(lines[-1]))


def rows(measured: Measured, cores: int) -> list[Row]:
    """Ours over theirs, by method."""
    table = []
    for method in dict.fromkeys(method for _, method in measured):
        ours, theirs = (measured[who, method] for who in ("hpcfed", "HtFLlib"))
        rates = [[run["images_per_second"] for run in runs] for runs in (ours, theirs)]
        details = {
            "images_per_second": statistics.median(rates[0]),
            "theirs": statistics.median(rates[1]),
            "accuracy": ours[-1]["accuracy"],
            "accuracy, theirs": theirs[-1]["accuracy"],
        }
        what = f"{METHODS[method]}, hpcfed over HtFLlib, {cores} core{'s' * (cores > 1)}"
        table.append(Row(what, ratio(*rates), least=3.0, details=details))
    return table


def main() -> None:
    options, measured = arguments(), Measured()
    if not options.data.exists():
        sys.exit(f"{options.data}: no such file; give Fashion-MNIST as HDF5 with --data")
    if options.rounds < 4:
        sys.exit(f"--rounds {options.rounds}: the first and the last are not timed; give 4 or more")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack(options.theirs, folder)
        prepare(options.data, folder)
        turns = {
            f"{who} {method}": partial(one, measured, who, method, folder, options)
            for method in options.only
            for who in ("hpcfed", "HtFLlib")
        }
        interleaved(turns, options.passes, warm=0)
    complete = len(options.only) == len(METHODS) and options.passes >= 3
    save("htfllib", rows(measured, options.cores), whole=complete)


if __name__ == "__main__":
    main()
