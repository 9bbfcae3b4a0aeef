"""A million asynchronous clients on one machine, and jobs per second beside APPFL's virtual-time
simulator.

`python benchmarks/asynchronous.py [--cache FOLDER] [--passes N]`: 10 minutes, and 5 to install
APPFL the first time. Logistic regression on `synthetic`, 60 examples a client, batches of 10, one
thread; a job is a client's download, training, upload and merge. APPFL's driver, agents, trainer
and aggregator have the same clients' examples; its default collects garbage several times in each
job, so a row without that stands beside it. Each candidate is a process of its own, and they take
turns.

`--check`: the million alone, with FedAsync and FedBuff: the same bits on 1 and 2 ranks, and after a
kill and a resume, by whole runs of the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "peers")]  # to be run from anywhere

from simulators import Peer, environment, installed, launcher  # noqa: E402

from benchmarks.paired import Ratio, Row, interleaved, ratio, save  # noqa: E402

MILLION, FEW, AT_ONCE, FEW_AT_ONCE = 10**6, 100, 1000, 3
GIB = 2**30
APPFL = Peer("APPFL (vsim)", "appfl_run.py", processes=(1,))


def flags(method: str, clients: int, at_once: int) -> list[str]:
    """The job: number of clients, of which `at_once` work at the same time, and as many merges a
    round.
    """
    options = {
        "algorithm.name": method,
        "clients": clients,
        "participation": at_once / clients,
        "rounds": 1000,
        "models.mix": "logistic",
        "data.name": "synthetic",
        "data.partition": "natural",
        "data.examples": 60,
        "local.optimiser": "sgd",
        "local.lr": 0.01,
        "local.batch": 10,
        "system.distribution": "lognormal",
        "system.spread": 1.0,
        "evaluate.clients": "cohort",
        "evaluate.every": 1000,
        "evaluate.before": "false",
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


class Candidate:
    """A process that does a number of jobs for each line that it reads.

    jobs: how many at a time.  what it answers: seconds, jobs, peak (bytes).
    """

    def __init__(self, words: list[str], env: dict[str, str], jobs: int):
        start = perf_counter()
        self.process = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.asked, self.done = jobs, list[dict[str, Any]]()
        self.answer()
        self.start = perf_counter() - start

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def step(self) -> None:
        print(self.asked, file=self.process.stdin, flush=True)
        self.done.append(self.answer())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    @property
    def peak(self) -> float:
        """GiB, the largest resident size so far."""
        return self.done[-1]["peak"] / GIB


def child(words: list[str]) -> None:
    """hpcfed's candidate: a round for each line, whatever number it has."""
    from hpcfed.comm import Serial
    from hpcfed.config.load import load
    from hpcfed.engine.decide import world
    from hpcfed.engine.round_record import peak_bytes
    from hpcfed.engine.rounds import Rounds
    from hpcfed.engine.setup import federation

    job = load(words)
    rounds = Rounds(federation(job, Serial(), world(job, Serial())))
    print(json.dumps({"peak": peak_bytes()}), flush=True)
    for _ in sys.stdin:
        start = perf_counter()
        row, _ = rounds.step()
        done = {"seconds": perf_counter() - start, "jobs": int(row["clients/reports"].sum())}
        print(json.dumps(done | {"peak": peak_bytes()}), flush=True)


def candidates(cache: Path, folder: Path) -> dict[str, Candidate]:
    """All that are compared, started."""
    env = environment(cache) | {"WANDB_MODE": "disabled"}
    ours = [sys.executable, str(HERE / "asynchronous.py"), "run"]
    cases = {
        "fedasync": flags("fedasync", MILLION, AT_ONCE),
        "fedbuff": flags("fedbuff", MILLION, AT_ONCE),
        "fedasync few": flags("fedasync", FEW, FEW),
    }
    rates = {}
    for name, words in cases.items():
        out = ["--out", str(folder / name.replace(" ", "-"))]
        rates[name] = Candidate(
            [*ours, json.dumps([*words, *out])], env, AT_ONCE
        )  # it says itself how many
    python = str(installed(APPFL, cache))
    for name, method, lean, jobs in (
        ("appfl fedasync", "fedasync", False, 3),
        ("appfl fedbuff", "fedbuff", False, 3),
        ("appfl lean", "fedasync", True, 100),
    ):
        options = {"method": method, "clients": FEW, "at_once": FEW_AT_ONCE, "lean": lean}
        words = [python, str(HERE / "peers" / APPFL.script), json.dumps(options)]
        rates[name] = Candidate(words, env, jobs)
    return rates


def compare(cache: Path, passes: int) -> list[Row]:
    """Jobs per second of hpcfed over those of APPFL."""
    with TemporaryDirectory(prefix="hpcfed-bench-", dir=Path.cwd()) as folder:
        all_ = candidates(cache, Path(folder))
        interleaved({name: c.step for name, c in all_.items()}, passes)
        for c in all_.values():
            c.end()
    rate = {name: [d["jobs"] / d["seconds"] for d in c.done[1:]] for name, c in all_.items()}
    median = {name: round(sorted(values)[len(values) // 2], 1) for name, values in rate.items()}
    rows = []
    for what, ours, theirs in (
        ("FedAsync, 1,000,000 clients", "fedasync", "appfl fedasync"),
        ("FedBuff, 1,000,000 clients", "fedbuff", "appfl fedbuff"),
        ("FedAsync, 100 clients", "fedasync few", "appfl fedasync"),
        (
            "FedAsync, 1,000,000 clients, without its collections of garbage",
            "fedasync",
            "appfl lean",
        ),
    ):
        rows.append(
            Row(
                f"{what}: jobs per second over APPFL's simulator with 100",
                ratio(rate[ours], rate[theirs]),
                least=20,
                details={
                    "jobs_per_second": median[ours],
                    "appfl_jobs_per_second": median[theirs],
                    "start_seconds": all_[ours].start,
                    "appfl_start_seconds": all_[theirs].start,
                    "peak_gib": all_[ours].peak,
                    "appfl_peak_gib": all_[theirs].peak,
                },
            )
        )
    peak = max(all_["fedasync"].peak, all_["fedbuff"].peak)
    title = "peak memory of 1,000,000 asynchronous clients, GiB"
    return [*rows, Row(title, Ratio(peak, peak, peak), most=4)]


def digest(run: Path) -> str:
    """What a run computed, as one word."""
    words = [sys.executable, "-m", "hpcfed.cli", "digest", str(run)]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return next(word for word in output if len(word) >= 32)


def check(method: str, clients: int, folder: Path, rounds: int = 3) -> dict[str, str]:
    """Digests of a run on one rank, on two, and on one that is killed after a checkpoint and goes
    on with two.
    """
    at_once = min(AT_ONCE, clients // 4)
    words = flags(method, clients, at_once)
    words[words.index("--rounds") + 1] = str(rounds)
    words += ["--checkpoint.every", "1", "--quiet", "true"]
    main = ["-m", "hpcfed.main", *words]
    env = environment(folder)
    runs = {name: folder / f"{method}-{name}" for name in ("one", "two", "killed")}
    for name, ranks in (("one", 1), ("two", 2)):
        start = [*launcher(Path(sys.executable), ranks), *main, "--out", str(runs[name])]
        subprocess.run(start, env=env, check=True)
    going = subprocess.Popen([sys.executable, *main, "--out", str(runs["killed"])], env=env)
    while going.poll() is None and not list(runs["killed"].glob("checkpoints/round-*.h5")):
        time.sleep(0.05)
    going.send_signal(signal.SIGKILL)
    going.wait()
    resume = ["-m", "hpcfed.main", "--resume", str(runs["killed"]), "--quiet", "true"]
    subprocess.run([*launcher(Path(sys.executable), 2), *resume], env=env, check=True)
    return {name: digest(run) for name, run in runs.items()}


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        return child(json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/hpcfed/peers")
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument(
        "--check", action="store_true", help="check that all runs have the same bits"
    )
    parser.add_argument(
        "--clients", type=int, default=MILLION, help="number of clients for --check"
    )
    options = parser.parse_args()
    if not options.check:
        return save("asynchronous", compare(options.cache, options.passes))
    folder = Path(os.path.abspath("hpcfed-check"))
    try:
        for method in ("fedasync", "fedbuff"):
            digests = check(method, options.clients, folder)
            alike = "the same bits" if len(set(digests.values())) == 1 else "DIFFERENT BITS"
            print(f"{method}, {options.clients:,} clients: {alike}: {digests}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


if __name__ == "__main__":
    main()
