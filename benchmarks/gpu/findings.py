"""Shared by the steps of `benchmarks/gpu`: their command line, their time limit, and the JSON file
into which each writes its findings at once.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
ROOT = BENCHMARKS.parent
sys.path[:0] = [str(BENCHMARKS), str(ROOT)]

LIMIT = 9.5  # minutes, of each step
GRACE = 20  # seconds after the limit, in which a step that hangs in a library is ended hard


class OverTime(Exception):
    """The step has used its time."""


class Findings:
    """The findings of one step: values by name, and checks that hold or do not.

    Every finding is written at once, so that it stays if a later step fails.
    """

    def __init__(self, path: Path, pretend: bool, limit: float):
        self.path, self.pretend, self.start, self.limit = path, pretend, perf_counter(), limit
        self.alone = threading.Lock()  # a step may do several things at once
        self.entries: dict[str, Any] = {
            "step": path.stem,
            "pretended": pretend,
            "ended": "not yet",
            "checks": {},
            "values": {},
        }
        path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def kind(self) -> str:
        """Of `run.device`."""
        return "cpu" if self.pretend else "cuda"

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return max(1.0, 60 * self.limit - (perf_counter() - self.start))

    def value(self, name: str, value: Any) -> None:
        """Enter something that was measured or seen."""
        with self.alone:
            self.entries["values"][name] = value
            print(f"{name}: {value}", flush=True)
            self.write()

    def check(self, name: str, holds: bool) -> None:
        """Enter something that has to hold."""
        with self.alone:
            self.entries["checks"][name] = bool(holds)
            print(f"{'ok' if holds else 'FAILS'}: {name}", flush=True)
            self.write()

    def attempt(self, name: str, work: Callable[[], Any]) -> Any:
        """What `work` returns; None if it fails, which is a check that does not hold."""
        try:
            return work()
        except OverTime:
            raise
        except Exception as error:  # one failure shall not hide what else there is to see
            self.value(f"{name}: error", "".join(traceback.format_exception(error))[-2000:])
            self.check(name, False)
            return None

    def write(self) -> None:
        self.entries["seconds"] = round(perf_counter() - self.start, 1)
        text = json.dumps(self.entries, indent=1, default=str)
        self.path.write_text(text + "\n")

    def end(self, how: str) -> int:
        """Enter how it ended; the exit status: 0 where all was done and every check holds."""
        self.entries["ended"] = how
        self.write()
        wrong = [name for name, holds in self.entries["checks"].items() if not holds]
        print(f"{self.path}: {how}; {len(wrong)} of {len(self.entries['checks'])} checks fail")
        return int(bool(wrong) or how != "done")


def carry_out(
    file: str,
    doc: str,
    work: Callable[..., None],
    options: Callable[[argparse.ArgumentParser], Any] | None = None,
) -> int:
    """Do one step as its command line says, within its time. Returns the exit status.

    work: (findings, the options of the command line).  options: adds those of only this step.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder for the JSON files of all steps")
    parser.add_argument("--pretend", action="store_true", help="toy size on the CPU")
    parser.add_argument("--minutes", type=float, default=LIMIT, help="time limit")
    if options:
        options(parser)
    arguments = parser.parse_args()
    report = Findings(
        arguments.folder.resolve() / f"{Path(file).stem}.json", arguments.pretend, arguments.minutes
    )
    signal.signal(signal.SIGALRM, over_time)
    signal.setitimer(signal.ITIMER_REAL, 60 * arguments.minutes)
    faulthandler.dump_traceback_later(60 * arguments.minutes + GRACE, exit=True)
    try:
        with pretended(arguments.pretend):
            work(report, arguments)
        how = "done"
    except OverTime:
        how = "out of time"
    except Exception as error:
        traceback.print_exc()
        how = f"error: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    return report.end(how)


def over_time(*_: Any) -> None:
    raise OverTime


def pretended(wanted: bool) -> Any:
    """A capture on the CPU, where one is wanted and hpcfed can be imported."""
    if not wanted:
        return nullcontext()
    try:
        from pretend import capture_on_cpu
    except ImportError:
        return nullcontext()
    return capture_on_cpu()


def command(
    words: Sequence[str | Path], report: Findings, extra: dict[str, str] | None = None
) -> tuple[int, str]:
    """Exit status and output of a command, which is ended with all that it started when the time of
    the step ends.
    """
    from launch import SETTINGS, run_within

    env = os.environ | SETTINGS | {"PYTHONPATH": str(ROOT)} | (extra or {})
    status, text = run_within(report.left, [str(word) for word in words], env, ROOT)
    if status is None:
        raise OverTime
    return status, text


def run(flags: Sequence[str | Path], report: Findings, ranks: int = 1, **extra: str) -> None:
    """One run of hpcfed on this number of ranks. RuntimeError with the end of its output if it
    fails.
    """
    from launch import mpirun

    launcher = [] if ranks == 1 else [mpirun(), "-np", str(ranks)]
    words = [*launcher, sys.executable, "-m", "hpcfed.main", *flags, "--quiet"]
    status, text = command(words, report, extra)
    if status:
        raise RuntimeError(f"exit status {status}: {text[-1500:]}")


def digest(folder: Path, report: Findings) -> str:
    """Of a run's results and weights."""
    status, text = command([sys.executable, "-m", "hpcfed.cli", "digest", folder], report)
    if status:
        raise RuntimeError(text[-500:])
    return text.split()[0]
