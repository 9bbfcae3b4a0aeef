"""One run of `chaos.py`: begun, struck, gone on with as a batch script would, and held against the
clean run.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from faults import EVERY, FAULTS, ROUNDS, Fault
from launch import mpirun, on_ranks
from watched import Hung, Told, Watched

from hpcfed.core.errors import HpcfedError
from hpcfed.core.exit_status import DONE
from hpcfed.core.rng import stream
from hpcfed.data.partition_file import Partition
from hpcfed.engine.fault_tolerance.supervise import onward
from hpcfed.storage import names
from hpcfed.storage.checkpoint import saved_rounds
from hpcfed.storage.digest import digest

LIMIT = 180  # seconds that one start may take: the machine may be crowded
STARTS = 3  # of a run at most; the first is struck
ON_ITS_WAY = 0.03  # seconds that a line takes at most from a rank to us
DISK = "16m"
SMALL = (
    f"--clients 6 --models.d 16 --data.train_limit 180 --rounds {ROUNDS} --evaluate.every 5 "
    f"--checkpoint.every {EVERY}"
)
MIXED = "--models.mix mlp,fedhenn-1,fedhenn-3 --local.keep_optimiser --participation 0.5"
# moments that stay with clients, and clients that rest, so that there is more to lose than weights
JOBS = {
    "fedclassavg": MIXED,
    "fedproto": f"--algorithm.name fedproto {MIXED}",
    "ktpfl": f"--algorithm.name ktpfl --data.public 30 {MIXED}",
    "fedasync": "--algorithm.name fedasync --models.mix mlp",
    "swift": "--algorithm.name swift --models.mix mlp",
}


@dataclass(frozen=True)
class Case:
    """One run and its fault. ranks: of the first start, and of each later one.  round, delay: when
    it strikes.
    """

    kind: str
    number: int
    seed: int
    job: str
    ranks: tuple[int, int]
    round: int
    delay: float

    @property
    def fault(self) -> Fault:
        return FAULTS[self.kind]

    def __str__(self) -> str:
        return f"--seed {self.seed} --only {self.kind} --number {self.number}"

    def command(self, run: Path, later: bool) -> list[str]:
        """What starts it, the first time or again."""
        fault, ranks = self.fault, str(self.ranks[later])
        launcher = [mpirun(), *(["--with-ft", "ulfm"] if fault.ulfm else []), "-np", ranks]
        job = shlex.split(f"{SMALL} {JOBS[self.job]} {fault.flags}")
        if fault.calls and not later:
            draw = stream(self.seed, "chaos", "calls", self.kind, self.number)
            launcher += fault.calls.words(run, self.ranks[0], draw)
        words = [*launcher, sys.executable, "-m", "hpcfed.main", *job, "--out", str(run)]
        if fault.supervised:
            return [sys.executable, "-m", "hpcfed.cli", "supervise", "--", *words]
        return [*words, *(onward(run) if later else [])]


@dataclass
class History:
    """What was seen of a run. hit: when it was struck, after `reached` rounds.  said: what it wrote
    to stderr.
    """

    hit: float = 0.0
    reached: int = 0
    told: list[Told] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    end: float = 0.0
    said: str = ""
    complaints: list[str] = field(default_factory=list)  # of the strike

    def add(self, job: Watched) -> None:
        """Wait for the end of a start."""
        self.statuses.append(job.finish())
        self.told += job.told
        self.said += job.said
        self.complaints += job.complaints
        self.end = monotonic()

    def done(self, run: Path) -> bool:
        """Whether it is at its end; mpirun with ULFM returns 0 also where all ranks were killed."""
        return self.statuses[-1] == DONE and saved_rounds(run) == ROUNDS

    @property
    def repeated(self) -> int:
        """Rounds that were done twice."""
        return len(self.told) - len({told.round for told in self.told})

    @property
    def seconds(self) -> float:
        """From the fault until a round is done that was not done before it; to the end where all
        were.
        """
        return (
            min((told.at for told in self.told if told.round > self.reached), default=self.end)
            - self.hit
        )


@dataclass(frozen=True)
class Outcome:
    """What became of a run. unexpected: no start should have ended as one did.  said: why, where it
    is not the same.  took: seconds of the whole of it.  struck: the file call that failed, was cut
    short or lost, and its file, as the library of filecalls.c told it; "" if none was.
    """

    case: Case
    verdict: str
    repeated: int = 0
    seconds: float = 0.0
    statuses: tuple[int, ...] = ()
    unexpected: bool = False
    said: str = ""
    took: float = 0.0
    struck: str = ""

    @property
    def kind(self) -> str:
        return self.case.kind

    def __str__(self) -> str:
        case = self.case
        when = f"after round {case.round} + {case.delay:.3f} s"
        text = (
            f"{case.kind} {case.number}, {case.job}, ranks {case.ranks}, {when}: {self.verdict}, "
            f"{self.repeated} repeated, {self.seconds:.1f} s, statuses {self.statuses}, "
            f"{self.took:.0f} s in all"
        )
        if case.fault.calls:
            text += f", struck: {self.struck or 'no call'}"
        again = f"python benchmarks/chaos.py {case}"
        return f"{text}\n  UNEXPECTED; again: {again}\n{self.said[-3000:]}" if self.failed else text

    def plain(self) -> dict[str, Any]:
        """Return all of it as JSON takes it, without what is at its default."""
        values = asdict(self) | {"said": self.said[-3000:] if self.failed else ""}
        return {name: value for name, value in values.items() if value}

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Outcome:
        """The outcome that `plain` gave, after JSON."""
        case = Case(**plain["case"] | {"ranks": tuple(plain["case"]["ranks"])})
        return cls(**plain | {"case": case, "statuses": tuple(plain.get("statuses", ()))})

    @property
    def failed(self) -> bool:
        return self.verdict != "same" or self.unexpected

    @property
    def counts(self) -> bool:
        """Whether a fault met the run: a file call that the run never came to is none."""
        return bool(self.struck) or self.case.fault.calls is None


def cleanly(job: str, folder: Path) -> str:
    """The digest of a job's run without a fault, on one rank."""
    run = folder / f"clean-{job}"
    on_ranks(1, "-m", "hpcfed.main", *shlex.split(f"{SMALL} {JOBS[job]}"), "--out", str(run))
    return digest(run)


def play(case: Case, clean: str, folder: Path) -> Outcome:
    """Do it. clean: the digest that it should come to."""
    begin = monotonic()
    outcome = played(case, clean, folder)
    parent = parent_of(case, folder)
    log = parent / "struck"
    call = log.read_text().strip().replace(f"{parent}/", "") if log.exists() else ""
    return replace(outcome, took=round(monotonic() - begin, 2), struck=call)


def parent_of(case: Case, folder: Path) -> Path:
    """The folder of a run and of what is beside it."""
    return folder / f"{case.kind}-{case.number}"


def played(case: Case, clean: str, folder: Path) -> Outcome:
    """What `play` does."""
    with place(case, folder) as run:
        seen = History()
        try:
            strike(case, run, seen)
            while not seen.done(run) and len(seen.statuses) < STARTS:
                with Watched(case.command(run, later=True), LIMIT) as job:
                    seen.add(job)
        except Hung as error:
            return Outcome(
                case, "hung", statuses=tuple(seen.statuses), said=f"{error}\n{seen.said}"
            )
        return judged(case, run, seen, clean)


@contextmanager
def place(case: Case, folder: Path) -> Iterator[Path]:
    """A run folder, on a disk of its own where that is to be full."""
    parent = parent_of(case, folder)
    parent.mkdir()
    if case.fault.disk:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", parent], check=True)
    try:
        yield parent / "run"
    finally:
        if case.fault.disk:
            subprocess.run(["umount", "-l", parent], check=True)


def strike(case: Case, run: Path, seen: History) -> None:
    """The first start, and the fault."""
    draw = stream(case.seed, "chaos", "strike", case.kind, case.number)
    with Watched(case.command(run, later=False), LIMIT) as job:
        job.until(
            lambda: job.reached >= case.round if case.round else job.ranks(), f"round {case.round}"
        )
        sleep(case.delay)
        case.fault.strike(job, run, draw)
        seen.hit = monotonic()
        sleep(ON_ITS_WAY)
        seen.reached = job.reached
        seen.add(job)
    if not seen.done(run):  # what it did after the fault may be in vain
        seen.reached = max(job.reached, seen.reached)
    if case.fault.after:
        case.fault.after(run, draw)


def judged(case: Case, run: Path, seen: History, clean: str) -> Outcome:
    """What to think of it: a struck start may end as its fault says, a second one goes on to the
    end.
    """
    unexpected = (
        seen.statuses[0] not in case.fault.statuses
        or len(seen.statuses) > 2
        or "Traceback" in seen.said
        or bool(seen.complaints)
    )
    seen.said = "\n".join([seen.said, *seen.complaints])
    try:
        if seen.done(run):
            Partition.load(names.partition_file(run))
        verdict = "lost" if not seen.done(run) else "same" if digest(run) == clean else "differing"
    except HpcfedError as error:
        verdict, seen.said = "lost", f"{seen.said}\n{error}"
    return Outcome(
        case, verdict, seen.repeated, seen.seconds, tuple(seen.statuses), unexpected, seen.said
    )
