"""Watchdog on every rank: ends the run, with a report, if no rank makes progress any more.

The ranks know of one another by small files in the run folder, one for each rank: a rank that is
stopped, or whose node is gone, cannot report, but its file tells the others who it is and where it
was.

Before the first round nobody can say how long a step may take (data are downloaded, models are
compiled). Until then any rank whose process runs counts as making progress, and the run ends if one
is silent. Before the ranks have a common folder, and after they have left it, a `Guard` limits the
time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import localtime, sleep, strftime, time

from hpcfed.comm import ulfm
from hpcfed.core.errors import plain, printable
from hpcfed.core.exit_status import HUNG
from hpcfed.core.paths import read_text
from hpcfed.machine.heartbeat import Heartbeat
from hpcfed.storage import names
from hpcfed.storage.atomic import instead

LOOKS = 40  # checks of a rank within the seconds allowed; but at least every
OFTEN = 30.0  # seconds
SILENT = 3  # checks after which a rank whose file is not renewed counts as silent
LAST = 2.0  # seconds: launchers pass on the ranks' output with a delay


@dataclass(frozen=True)
class Sign:
    """A rank's report on itself: when it was written, time of the last progress, and where it is.

    written, since: Unix seconds.
    """

    rank: int
    process: int
    host: str
    written: float
    since: float
    where: str

    def __str__(self) -> str:
        last = strftime("%H:%M:%S", localtime(self.written))
        return (
            f"process {self.process} on {self.host}, last heard of at {last}; it was at "
            f"{self.where}"
        )


class Watchdog:
    """A background thread on each rank; it watches the run inside a with block.

    seconds: without progress of any rank after which the run ends; 0 disables the watchdog.
    end: function that ends this process.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        rank: int,
        size: int,
        run: Path,
        seconds: float,
        end: Callable[[int], object] = os._exit,
    ):
        self.heartbeat, self.rank, self.size, self.run, self.seconds, self.end = (
            heartbeat,
            rank,
            size,
            run,
            seconds,
            end,
        )
        self.every = min(seconds / LOOKS, OFTEN)
        self.beats, self.since, self.last_check = -1, time(), time()
        self.most_signs = 0  # largest number of signs seen in one check
        self.missing = 0.0  # time since when there are fewer; 0: there are not
        self.starting = True  # until the first round begins
        # by rank the times in its last sign, and when each of them last changed: clocks of nodes
        # differ, so ages are measured by this rank's own
        self.heard = dict.fromkeys(range(size), (0.0, time()))
        self.progress = dict.fromkeys(range(size), (0.0, time()))
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True, name="watchdog")

    def __enter__(self) -> Watchdog:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        if self.seconds:
            self.leave(time())  # so that a rank that stops at once is known too
            self.thread.start()

    def stop(self) -> None:
        """Stop watching, and remove this rank's file."""
        self.over.set()
        if self.seconds:
            self.thread.join()
        with suppress(OSError):
            names.watch_file(self.run, self.rank).unlink(missing_ok=True)
            names.watch_folder(self.run).rmdir()  # by the last one

    def watch(self) -> None:
        """Check again and again, until the block ends or the run is stuck."""
        while not self.over.wait(self.every):
            if self.is_stuck(time()):
                self.end_run()
                return

    def is_stuck(self, now: float) -> bool:
        """Write this rank's file, and return whether no rank has made progress for too long."""
        # this process itself was stopped, or the machine
        paused = now - self.last_check > SILENT * self.every + LAST
        if paused or self.starting or self.beats != self.heartbeat.beats:
            self.beats, self.since = self.heartbeat.beats, now
        self.last_check = now
        written, signs = self.leave(now), self.signs()
        # the disk is full or gone: a rank without a new sign may still be alive; but one that has
        # removed its sign has left the run, and the others do not wait for it for ever
        missing = len(signs) < self.most_signs
        self.missing = (self.missing or now) if missing else 0.0
        unheard = not written or (missing and now - self.missing <= self.seconds)
        if unheard:
            self.since = now
        self.most_signs = max(self.most_signs, len(signs))
        self.listen(signs, now, anew=unheard or paused)
        if self.starting:
            return any(now - when > self.seconds for _, when in self.heard.values())
        return now - self.since > self.seconds and all(
            now - self.progress[sign.rank][1] > self.seconds for sign in signs
        )

    def listen(self, signs: list[Sign], now: float, anew: bool) -> None:
        """Note when each rank was last heard of, and made progress, by this rank's clock.

        anew: whether all of them count as heard now.
        """
        note_changes(self.heard, {sign.rank: sign.written for sign in signs}, now, anew)
        note_changes(self.progress, {sign.rank: sign.since for sign in signs}, now, anew)

    def silent(self, signs: list[Sign], now: float) -> list[Sign]:
        """Return the signs of ranks that no longer renew them."""
        limit = SILENT * self.every + LAST
        return [sign for sign in signs if now - self.heard[sign.rank][1] > limit]

    def leave(self, now: float) -> bool:
        """Write this rank's file anew, and return whether that worked.

        A failing file system does not end the run here.
        """
        path = names.watch_file(self.run, self.rank)
        sign = Sign(
            self.rank, os.getpid(), socket.gethostname(), now, self.since, str(self.heartbeat)
        )
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            with instead(path) as new:
                new.write_text(json.dumps(asdict(sign)))
            return True
        return False

    def signs(self) -> list[Sign]:
        """Return the last reports of all ranks that have one."""
        reports = []
        for rank in range(self.size):
            with suppress(OSError, ValueError, TypeError):
                reports.append(Sign(**json.loads(read_text(names.watch_file(self.run, rank)))))
        return reports

    def end_run(self) -> None:
        """Print where this rank is, give the others time to do so, and end the run."""
        if not self.starting:
            print(
                printable(
                    f"hpcfed: rank {self.rank} of {self.size}: no progress for {self.seconds:g} s, "
                    f"at {self.heartbeat}"
                ),
                file=sys.stderr,
                flush=True,
            )
            with suppress(ValueError, OSError, AttributeError):  # where stderr is not a file
                faulthandler.dump_traceback(file=sys.__stderr__)  # type: ignore[arg-type]
        sleep(self.every + LAST)
        now, signs = time(), self.signs()
        self.listen(signs, now, anew=False)
        silent = self.silent(signs, now)
        if self.rank == min((s.rank for s in signs if s not in silent), default=self.rank):
            print(plain(self.verdict(silent)), file=sys.stderr, flush=True)
            sleep(LAST)
            if ulfm.available():  # the launcher runs as long as there is a process
                kill(silent)
        # who ends first ends all, with its status: the rank that speaks, perhaps a look later than
        # this one
        else:
            sleep(self.every + 2 * LAST)
            kill(silent)  # in case the launcher still runs
        self.end(HUNG)

    def verdict(self, silent: list[Sign]) -> str:
        """Return the message that says why the run ends, and what to do."""
        why = "a rank was silent at the start" if self.starting else "no rank got on"
        lines = [
            f"hpcfed: {why} for {self.seconds:g} s (run.watchdog): the run ends with status {HUNG}"
        ]
        lines += [
            f"  rank {sign.rank} of {self.size} is silent, as a stopped process is: {sign}"
            for sign in silent
        ]
        if self.starting:
            lines += [
                f"  rank {rank} of {self.size} has left no sign in {names.watch_folder(self.run)}"
                for rank, (last_sign, _) in self.heard.items()
                if not last_sign and rank != self.rank
            ]
            return "\n".join([*lines, "  start it again as before"])
        return "\n".join([*lines, f"  continue from the last checkpoint with --resume {self.run}"])


def note_changes(
    times: dict[int, tuple[float, float]], last: dict[int, float], now: float, anew: bool
) -> None:
    """Note by rank the last value, and the time at which it changed; `anew` counts as a change."""
    for rank, (value, when) in times.items():
        fresh = anew or last.get(rank, value) != value
        times[rank] = (last.get(rank, value), now if fresh else when)


class Guard:
    """A time limit on waiting for other ranks where the watchdog's files cannot be used.

    It ends this process when the time is over.
    seconds: the limit; 0 is no limit.
    end: function that ends this process.
    """

    def __init__(
        self, rank: int, size: int, seconds: float, end: Callable[[int], object] = os._exit
    ):
        self.rank, self.size, self.seconds, self.end = rank, size, seconds, end
        self.over = threading.Event()

    def begin(self, where: str, more: float = 0.0) -> None:
        """Start the limit, which holds until `stop`.

        where: phase of the run, in words.
        more: seconds added to the limit.
        """
        if self.seconds and self.size > 1:
            self.over = threading.Event()
            wait = partial(self.watch, self.over, where, self.seconds + more)
            threading.Thread(target=wait, daemon=True, name="guard").start()

    def stop(self) -> None:
        """End the limit."""
        self.over.set()

    def watch(self, over: threading.Event, where: str, seconds: float) -> None:
        """Wait until the limit is over, then print a message and end the run.

        It counts LOOKS intervals, so time in which this process itself is stopped does not count.
        """
        for _ in range(LOOKS):
            if over.wait(seconds / LOOKS):
                return
        if not over.wait(min(self.rank, 1) * (seconds / LOOKS + LAST)):  # rank 0 speaks first
            self.end_run(where, seconds)

    def end_run(self, where: str, seconds: float) -> None:
        """Print a message, and end the run."""
        text = (
            f"hpcfed: rank {self.rank} of {self.size}: has waited for the other ranks for "
            f"{seconds:g} s {where} of the run (run.watchdog): one of them is stopped or "
            f"gone; the run ends with status {HUNG}"
        )
        print(text, file=sys.stderr, flush=True)
        sleep(LAST)
        if ulfm.available():
            for process in find_stopped_siblings(os.getpid()):
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
        self.end(HUNG)


def find_stopped_siblings(process: int) -> list[int]:
    """Return the stopped processes that have the same parent, a launcher."""
    states = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            states[int(entry.name)] = state, parent
    _, launcher = states.get(process, ("", ""))
    return [one for one, (state, parent) in states.items() if state in "Tt" and parent == launcher]


def kill(silent: list[Sign]) -> None:
    """Kill the silent processes of this machine.

    Otherwise a launcher that does not end when a rank dies would wait for them.
    """
    for sign in silent:
        if sign.host == socket.gethostname() and sign.process != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(sign.process, signal.SIGKILL)
