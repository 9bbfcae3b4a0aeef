"""A watchdog on every rank: where no rank gets on any more, all say where they are, and the run
ends.

The ranks know of one another by small files in the run folder, one a rank: a rank that is stopped,
or whose node is gone, cannot speak, but its file tells the others who it is and where it was.

Until the first round nobody can say how long a step may take (data are downloaded, models are
compiled): there a rank gets on as long as its process runs, and the run ends where one is silent.
Before the ranks have a folder in common, and after they have left it, a `Guard` limits the time.
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
from hpcfed.core.paths import read_text
from hpcfed.core.status import HUNG
from hpcfed.machine.heartbeat import Heartbeat
from hpcfed.storage import names
from hpcfed.storage.atomic import instead

LOOKS = 40  # times that a rank looks in the seconds allowed; but at least every
OFTEN = 30.0  # seconds
SILENT = 3  # looks after which a rank whose file is not renewed cannot speak
LAST = 2.0  # seconds: launchers pass on what ranks print a little later


@dataclass(frozen=True)
class Sign:
    """What a rank says of itself: when it last did, since when it has not got on, and where it is;
    Unix seconds.
    """

    rank: int
    process: int
    host: str
    seen: float
    since: float
    where: str

    def __str__(self) -> str:
        last = strftime("%H:%M:%S", localtime(self.seen))
        return (
            f"process {self.process} on {self.host}, last heard of at {last}; it was at "
            f"{self.where}"
        )


class Watchdog:
    """A thread beside the run, on each rank; inside a with block it watches.

    seconds: in which no rank gets on, after which the run ends; 0: it does not watch.  end: ends
    this process.
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
        self.beats, self.since, self.seen = -1, time(), time()
        self.known = 0  # signs that were seen at once, at most
        self.starting = True  # until the first round begins
        self.heard = dict.fromkeys(range(size), (0.0, time()))  # last sign, and when it came
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
        """No more looks; this rank's file is removed."""
        self.over.set()
        if self.seconds:
            self.thread.join()
        with suppress(OSError):
            names.watch_file(self.run, self.rank).unlink(missing_ok=True)
            names.watch_folder(self.run).rmdir()  # by the last one

    def watch(self) -> None:
        """Look again and again, until the block ends or nothing goes on."""
        while not self.over.wait(self.every):
            if self.is_stuck(time()):
                self.bark()
                return

    def is_stuck(self, now: float) -> bool:
        """Leave this rank's sign; whether no rank has got on for too long."""
        # this process itself was stopped, or the machine
        paused = now - self.seen > SILENT * self.every + LAST
        if paused or self.starting or self.beats != self.heartbeat.beats:
            self.beats, self.since = self.heartbeat.beats, now
        self.seen = now
        told, signs = self.leave(now), self.signs()
        # the disk is full or gone: who is silent now may only be unheard
        unheard = not told or len(signs) < self.known
        if unheard:
            self.since = now
        self.known = max(self.known, len(signs))
        self.listen(signs, now, anew=unheard or paused)
        if self.starting:
            return any(now - when > self.seconds for _, when in self.heard.values())
        return now - self.since > self.seconds and all(
            now - sign.since > self.seconds for sign in signs
        )

    def listen(self, signs: list[Sign], now: float, anew: bool) -> None:
        """Note when each rank was last heard of, by this rank's clock. anew: all of them now."""
        last = {sign.rank: sign.seen for sign in signs}
        for rank, (seen, when) in self.heard.items():
            fresh = anew or last.get(rank, seen) != seen
            self.heard[rank] = (last.get(rank, seen), now if fresh else when)

    def leave(self, now: float) -> bool:
        """Renew this rank's file; whether that worked.

        A file system that fails ends nothing here.
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
        """The last signs of all ranks that left one."""
        found = []
        for rank in range(self.size):
            with suppress(OSError, ValueError, TypeError):
                found.append(Sign(**json.loads(read_text(names.watch_file(self.run, rank)))))
        return found

    def bark(self) -> None:
        """Say where this rank is, give the others time to do so, and end the run."""
        if not self.starting:
            print(
                printable(
                    f"hpcfed: rank {self.rank} of {self.size}: no progress for {self.seconds:g} s, "
                    f"at {self.heartbeat}"
                ),
                file=sys.stderr,
                flush=True,
            )
            with suppress(ValueError, OSError, AttributeError):  # where stderr is no file
                faulthandler.dump_traceback(file=sys.__stderr__)  # type: ignore[arg-type]
        sleep(self.every + LAST)
        now, signs = time(), self.signs()
        silent = [sign for sign in signs if now - sign.seen > SILENT * self.every + LAST]
        if self.rank == min((s.rank for s in signs if s not in silent), default=self.rank):
            print(plain(self.verdict(silent)), file=sys.stderr, flush=True)
            sleep(LAST)
            if ulfm.available():  # the launcher goes on as long as there is a process
                kill(silent)
        # who ends first ends all, with its status: the rank that speaks, perhaps a look later than
        # this one
        else:
            sleep(self.every + 2 * LAST)
            kill(silent)  # in case that the launcher goes on
        self.end(HUNG)

    def verdict(self, silent: list[Sign]) -> str:
        """Why the run ends, and what to do."""
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
                for rank, (seen, _) in self.heard.items()
                if not seen and rank != self.rank
            ]
            return "\n".join([*lines, "  start it again as before"])
        return "\n".join([*lines, f"  continue from the last checkpoint with --resume {self.run}"])


class Guard:
    """Ends this process where something takes too long for which the ranks wait for one another,
    and can leave no signs.

    seconds: that it may take; 0: as long as it likes.  end: ends this process.
    """

    def __init__(
        self, rank: int, size: int, seconds: float, end: Callable[[int], object] = os._exit
    ):
        self.rank, self.size, self.seconds, self.end = rank, size, seconds, end
        self.over = threading.Event()

    def begin(self, where: str, more: float = 0.0) -> None:
        """From now on, until `stop`.

        where: of a run, in words.  more: seconds that are allowed too.
        """
        if self.seconds and self.size > 1:
            self.over = threading.Event()
            wait = partial(self.watch, self.over, where, self.seconds + more)
            threading.Thread(target=wait, daemon=True, name="guard").start()

    def stop(self) -> None:
        """It is done."""
        self.over.set()

    def watch(self, over: threading.Event, where: str, seconds: float) -> None:
        """Count looks, not seconds: those for which this process itself is stopped do not count."""
        for _ in range(LOOKS):
            if over.wait(seconds / LOOKS):
                return
        if not over.wait(min(self.rank, 1) * (seconds / LOOKS + LAST)):  # rank 0 speaks first
            self.bark(where, seconds)

    def bark(self, where: str, seconds: float) -> None:
        """Say it, and end the run."""
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
    """The processes with the same parent, a launcher, that are stopped."""
    states = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            states[int(entry.name)] = state, parent
    _, launcher = states.get(process, ("", ""))
    return [one for one, (state, parent) in states.items() if state in "Tt" and parent == launcher]


def kill(silent: list[Sign]) -> None:
    """End the silent processes of this machine: a launcher for which a dead rank is no end would
    wait for them.
    """
    for sign in silent:
        if sign.host == socket.gethostname() and sign.process != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(sign.process, signal.SIGKILL)
