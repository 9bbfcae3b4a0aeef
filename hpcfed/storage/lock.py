"""One run at a time in a run folder: a file there names the process that writes to it.

The file is made under another name and linked into place, which one process alone can do, on
network file systems too; where there are no hard links it is made exclusively. Its holder renews
its time every few seconds. Who finds such a file asks whether the holder still lives:

- on the same machine its process tells, by number and start time;
- on another machine the time of the file does, by the clock of the file system: it is alive where
  that was renewed in the last minute, dead after a quarter of an hour, and in between nobody can
  say, so that it takes `--force`;
- a batch job that was queued again has ended what it was before.

The file of a dead holder is replaced under a lock of its own, whose name comes from what is
replaced: so of two processes that find it dead, one alone takes its place.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import re
import secrets
import socket
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from time import localtime, monotonic, sleep, strftime, time

from hpcfed.core.errors import ConfigError, format_error
from hpcfed.core.paths import glob_folder
from hpcfed.core.status import WRONG
from hpcfed.storage import names
from hpcfed.storage.atomic import convert_write_errors

BEAT = 10.0  # seconds between two signs of life of a holder
ALIVE = 60.0  # seconds after a sign for which a holder on another machine is taken to live
DEAD = 900.0  # and after which it is taken to be dead
LONGEST = ALIVE + BEAT  # seconds that `--force` waits for a sign
ENDING = 3.0  # seconds for which a process of this machine may be about to end
PAUSE = 0.05  # seconds between two looks
MOST = 10_000  # bytes of a lock file
UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL)


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    token: of this one file.  world: of the ranks that hold it, the one after the other.  machine:
    names its processes: the boot and the namespace in which they are numbered.  started: of the
    process, in ticks since the boot.  job, restart: of Slurm, and how often it was queued again.
    """

    token: str = ""
    world: str = ""
    user: str = "?"
    host: str = "?"
    machine: str = ""
    process: int = 0
    started: str = ""
    job: str = ""
    restart: int = 0

    def __str__(self) -> str:
        batch = f", batch job {self.job}" if self.job else ""
        return f"process {self.process} of {self.user} on {self.host}{batch}"


@dataclass(frozen=True)
class Found:
    """A lock file that is there: its holder, and when it was last renewed, in Unix seconds."""

    holder: Holder
    renewed: float


def this_process(world: str, env: Mapping[str, str] = os.environ) -> Holder:
    """This process as a holder."""
    count = env.get("SLURM_RESTART_COUNT", "")
    return Holder(
        token=secrets.token_hex(16),
        world=world,
        user=user(),
        host=socket.gethostname(),
        machine=machine(),
        process=os.getpid(),
        started=start_time(os.getpid()),
        job=env.get("SLURM_JOB_ID", ""),
        restart=int(count) if count.isdecimal() else 0,
    )


def user() -> str:
    """The user's name; the number where it has none, as in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


@cache
def machine() -> str:
    """What processes of equal numbers are the same in: a boot of a machine, and a namespace of
    process numbers; "" where the system does not say.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def start_time(process: int) -> str:
    """When a process was started, in ticks since the boot.

    "" where there is none, it has ended and nobody has asked for its status yet, or the system does
    not say.
    """
    with suppress(OSError):
        state, *others = (
            Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].decode().split()
        )
        return "" if state in "ZX" else others[18]
    return ""


def lives(holder: Holder) -> bool:
    """Whether the holder's process lives, on the machine of this one."""
    try:
        os.kill(holder.process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        pass
    return start_time(holder.process) == holder.started


def read(path: Path) -> Found | None:
    """The lock file at that path; None where there is none.

    One that nobody can understand has a holder of whom nothing is known.

    It is opened anew each time: that is when network file systems ask their server.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        text = file.read(MOST) if stat.S_ISREG(about.st_mode) else b""
    return Found(parse_holder(text), about.st_mtime)


def parse_holder(text: bytes) -> Holder:
    """The holder that a lock file names."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        given = json.loads(text)
        known = {field.name: type(field.default) for field in fields(Holder)}
        values = {name: given[name] for name in known if type(given.get(name)) is known[name]}
        holder = Holder(**values)
        if re.fullmatch("[0-9a-f]{32}", holder.token) and holder.process > 0:
            return holder
    return Holder()


def find_holder(run: Path) -> Holder | None:
    """Who holds the lock of a run folder, and is not known to be dead; None: nobody."""
    try:
        found = read(names.lock_file(run))
    except OSError:
        return None
    return found.holder if found and not dead(found, time(), this_process("")) else None


def dead(found: Found, now: float, me: Holder) -> bool:
    """Whether a holder has ended, as far as `me` can know."""
    holder, silent = found.holder, now - found.renewed
    if holder.machine and holder.machine == me.machine:
        return not lives(holder)
    if holder.job and holder.job == me.job and holder.restart < me.restart:
        return True
    return silent > (ALIVE if holder.host == me.host else DEAD)  # of this name, but another boot


class Lock:
    """The lock of a run folder. token: of the ranks that may take it over from one another.

    end: ends this process, where another one has taken the folder away from it; None: `check`
    raises from then on.
    """

    def __init__(self, run: Path, world: str, end: Callable[[int], object] | None = os._exit):
        self.lost = ""  # why the lock is another's now
        self.run, self.path, self.world, self.end = run, names.lock_file(run), world, end
        self.me: Holder | None = None
        self.renewed = monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.keep, daemon=True, name="lock")

    def take(self, force: bool = False) -> None:
        """Take the lock, and keep it until `release`.

        force: take it too from a holder on another machine of whom nothing is heard for a minute,
        for which this waits.  Raises ConfigError where another process holds it, WriteError where
        the disk refuses.
        """
        me = this_process(self.world)
        with convert_write_errors(self.path):
            take(self.path, me, force)
        self.me = me
        self.thread.start()

    def keep(self) -> None:
        """Renew the file again and again."""
        while not self.over.wait(BEAT):
            self.renew()

    def check(self) -> None:
        """Before something is written: where this process was stopped for a while, another one may
        have the lock.
        """
        if monotonic() - self.renewed > 2 * BEAT:
            self.renew()
        if self.lost:
            raise ConfigError(self.lost)

    def renew(self) -> None:
        """A sign of life; where another process has the lock now, this one ends."""
        assert self.me is not None
        self.renewed = monotonic()
        with suppress(OSError):  # a disk that is gone for a while
            found = read(self.path)
            if found and found.holder.token == self.me.token:
                os.utime(self.path)
            elif found:
                self.lose(found.holder)
            else:
                put(self.path, self.me)

    def lose(self, other: Holder) -> None:
        """End: what this process would write from now on would spoil the other's run."""
        text = f"{self.run}: {other} has taken this run folder over; this run ends here"
        if self.end is None:
            self.lost = text
            return
        print(f"hpcfed: {format_error(text)}", file=sys.stderr, flush=True)
        self.end(WRONG)

    def release(self) -> None:
        """Let others have it; nothing where this process does not hold it."""
        if self.me is None:
            return
        self.over.set()
        self.thread.join()
        with suppress(OSError):
            found = read(self.path)
            if found and found.holder.token == self.me.token:
                self.path.unlink()
        self.me = None


def put(path: Path, me: Holder) -> bool:
    """Make the lock file; False where there is one. OSError where that cannot be done."""
    new = candidate(path, me)
    try:
        return link_file(new, path)
    finally:
        new.unlink(missing_ok=True)


def take(path: Path, me: Holder, force: bool = False) -> None:
    """Make the lock file, or replace that of a dead holder; see `Lock.take`."""
    new, begun = candidate(path, me), monotonic()
    try:
        while not link_file(new, path):
            found = read(path)
            if found is None:  # it was released just now
                continue
            os.utime(new)
            now = os.stat(new).st_mtime  # by the clock that renews the other one
            mine = bool(me.world) and found.holder.world == me.world
            here = bool(me.machine) and found.holder.machine == me.machine
            forced = force and not here and now - found.renewed > ALIVE
            if mine or forced or dead(found, now, me):
                if replace_holder(path, new, me, found.holder):
                    return
            elif monotonic() - begun > patience(here, force):
                raise refusal(path, found, now, here, force)
            sleep(PAUSE)
    finally:
        new.unlink(missing_ok=True)


def patience(here: bool, force: bool) -> float:
    """Seconds to wait for a holder that may be about to end, or of whom nothing may be heard."""
    if here:
        return BEAT if force else ENDING
    return LONGEST if force else 0.0


def tidy(run: Path) -> None:
    """Remove what processes that were killed while they took the lock have left."""
    me, now = this_process(""), time()
    for left in glob_folder(run, f"{names.lock_file(run).name}.*"):
        with suppress(OSError):
            found = read(left)
            if found and dead(found, now, me):
                left.unlink()


def candidate(path: Path, me: Holder) -> Path:
    """A file of another name with what the lock file is to hold, as the disk has it."""
    new = path.with_name(f"{path.name}.{me.token}.new")
    with open(new, "xb") as file:
        file.write(json.dumps(asdict(me)).encode())
        file.flush()
        os.fsync(file.fileno())
    return new


def link_file(new: Path, path: Path) -> bool:
    """Give the file this name too; False where something has it."""
    try:
        os.link(new, path)
        return True
    except FileExistsError:
        try:  # some network file systems do it twice where an answer was lost
            return os.path.samefile(new, path)
        except FileNotFoundError:  # another process has just removed it
            return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    try:
        with open(path, "xb") as file:  # a file system without hard links
            file.write(new.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        return True
    except FileExistsError:
        return False


def replace_holder(path: Path, new: Path, me: Holder, old: Holder) -> bool:
    """Put the file in the place of that of this holder.

    False where another process did, or is at it.
    """
    mark = path.with_name(f"{path.name}.{old.token or 'unknown'}.old")
    if not link_file(new, mark):
        found = read(mark)
        if found and dead(found, os.stat(new).st_mtime, me):  # it was killed just then
            more = candidate(mark, me)
            try:
                if replace_holder(mark, more, me, found.holder):
                    mark.unlink(missing_ok=True)
            finally:
                more.unlink(missing_ok=True)
        return False
    try:
        found = read(path)
        if found is None or found.holder.token != old.token:
            return False
        os.replace(new, path)
        return True
    finally:
        mark.unlink(missing_ok=True)


def refusal(path: Path, found: Found, now: float, here: bool, force: bool) -> ConfigError:
    """Why the folder cannot be had, and what to do."""
    last = strftime("%Y-%m-%d %H:%M:%S", localtime(found.renewed))
    who = f"out: {path.parent}: another run has this folder: {found.holder}"
    if here:
        return ConfigError(f"{who}; wait for its end, end it, or give another --out")
    heard = f"{who}, last heard of at {last}"
    if force or now - found.renewed <= ALIVE:
        return ConfigError(f"{heard}; wait for its end, end it, or give another --out")
    return ConfigError(
        f"{heard}; whether it still goes on cannot be told from this machine: where it does not, "
        f"take the folder with --force"
    )
