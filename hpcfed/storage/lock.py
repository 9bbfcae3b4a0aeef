"""Lock of a folder: a file that names the process that writes there, so that only one does.

A run locks its folder, and a download the folder of the data (`hpcfed.data.download`).

The file is made under another name and linked into place, which only one process can do, on network
file systems too; without hard links it is made exclusively (`link_file`). Its holder renews its
modification time every few seconds. A process that finds such a file asks whether the holder still
lives:
- on the same machine its process decides, by number and start time;
- on another machine the modification time does, by the clock of the file system: the holder is
  alive if it was renewed in the last minute, dead after a quarter of an hour; in between nobody
  can say, and `--force` is needed;
- a batch job that was queued again has ended its earlier processes.
The file of a dead holder is replaced under a second lock, whose name is derived from the file
replaced: so only one of two processes that find it dead takes its place.
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
from hpcfed.core.exit_status import WRONG
from hpcfed.core.paths import glob_folder
from hpcfed.storage import names
from hpcfed.storage.atomic import convert_write_errors

BEAT = 10.0  # seconds between two renewals by the holder
ALIVE = 60.0  # seconds after a renewal for which a holder on another machine counts as alive
DEAD = 900.0  # and after which it counts as dead
LONGEST = ALIVE + BEAT  # seconds that `--force` waits for a renewal
ENDING = 3.0  # seconds for which a process of this machine may be about to end
PAUSE, LONG_PAUSE = 0.05, 1.0  # seconds between two polls: at first, and after a long wait
MOST = 10_000  # bytes of a lock file
DIGITS = 10  # of a number in the environment
UNSUPPORTED = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV, errno.EINVAL)


@dataclass(frozen=True)
class Holder:
    """The holder of a lock.

    token: unique to this lock file.
    world: common to the ranks of one run, which may hold the lock one after the other.
    machine: identifies the boot and the namespace in which processes are numbered.
    started: start of the process, in ticks since the boot.
    job, restart: of Slurm: the batch job, and how often it was queued again.
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


Waiter = Callable[[Holder, float], object]  # receives the holder, and the seconds waited so far


@dataclass(frozen=True)
class Found:
    """An existing lock file: its holder, and when it was last renewed, in Unix seconds."""

    holder: Holder
    renewed: float

    @property
    def last(self) -> str:
        """When it was last renewed, as text."""
        return strftime("%Y-%m-%d %H:%M:%S", localtime(self.renewed))


def this_process(world: str, env: Mapping[str, str] = os.environ) -> Holder:
    """Return this process as a holder."""
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
        restart=int(count) if count.isdecimal() and len(count) < DIGITS else 0,
    )


def user() -> str:
    """Return the user's name, or the number if there is no name, as in a container."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


@cache
def machine() -> str:
    """Return an identifier of the boot and of the namespace of process numbers.

    Process numbers can be compared only within it. Returns "" if the system does not tell.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def start_time(process: int) -> str:
    """Return when a process was started, in ticks since the boot.

    Returns "" if there is no such process, if it has ended as a zombie, or if the system does not
    tell.
    """
    with suppress(OSError):
        state, *others = (
            Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].decode().split()
        )
        return "" if state in "ZX" else others[18]
    return ""


def lives(holder: Holder) -> bool:
    """Return whether the holder's process lives; the holder must be on this machine."""
    try:
        os.kill(holder.process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        pass
    return start_time(holder.process) == holder.started


def read(path: Path) -> Found | None:
    """Return the lock file at that path, None if there is none.

    The holder of an unreadable file is unknown (`Holder()`). The file is opened again each time,
    because only then do network file systems ask their server.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        about = os.fstat(handle)
        text = os.read(handle, MOST) if stat.S_ISREG(about.st_mode) else b""
    finally:
        os.close(handle)
    return Found(parse_holder(text), about.st_mtime)


def parse_holder(text: bytes) -> Holder:
    """Return the holder that a lock file names."""
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        content = json.loads(text)
        types = {field.name: type(field.default) for field in fields(Holder)}
        values = {name: content[name] for name in types if type(content.get(name)) is types[name]}
        holder = Holder(**values)
        if re.fullmatch("[0-9a-f]{32}", holder.token) and holder.process > 0:
            return holder
    return Holder()


def find_holder(run: Path) -> Holder | None:
    """Return the holder of a run folder's lock; None if there is none or it is known to be dead."""
    entry = find_lock(run)
    return entry.holder if entry else None


def find_lock(run: Path) -> Found | None:
    """Return a run folder's lock; None if there is none or its holder is known to be dead."""
    try:
        entry = read(names.lock_file(run))
    except OSError:
        return None
    return entry if entry and not dead(entry, time(), this_process("")) else None


def is_silent(entry: Found) -> bool:
    """Return whether a holder is on another machine and gave no sign of life for a minute.

    `--force` takes the folder from such a holder.
    """
    here = bool(machine()) and entry.holder.machine == machine()
    return not here and time() - entry.renewed > ALIVE


def is_locked_by(run: Path, world: str) -> bool:
    """Return whether these ranks have the lock of the run folder that this machine sees."""
    try:
        entry = read(names.lock_file(run))
    except OSError:
        return False
    return entry is not None and entry.holder.world == world


def dead(entry: Found, now: float, me: Holder) -> bool:
    """Return whether a holder has ended, as far as `me` can know."""
    holder, silent = entry.holder, now - entry.renewed
    if holder.machine and holder.machine == me.machine:
        return not lives(holder)
    if holder.job and holder.job == me.job and holder.restart < me.restart:
        return True
    return silent > (ALIVE if holder.host == me.host else DEAD)  # same host: after a reboot


class Lock:
    """The lock of a run folder.

    world: identifier of the ranks that may take the lock over from one another.
    end: function that ends this process if another one has taken the folder; None: `check` raises
    instead.
    path: the lock file; None: the one of a run folder.
    """

    def __init__(
        self,
        run: Path,
        world: str,
        end: Callable[[int], object] | None = os._exit,
        path: Path | None = None,
    ):
        self.lost = ""  # message about the loss of the lock
        self.run, self.path, self.world, self.end = run, path or names.lock_file(run), world, end
        self.me: Holder | None = None
        self.renewed = monotonic()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.keep, daemon=True, name="lock")

    def take(self, force: bool = False, wait: Waiter | None = None) -> None:
        """Take the lock, and keep it until `release`.

        force: take it also from a holder on another machine that has not renewed it for a minute;
        this waits for that time.
        wait: wait for the holder as long as it lives, and call this function at each poll.
        Raises ConfigError if another process holds it, unless `wait` is given, and WriteError if
        the file cannot be written.
        """
        me = this_process(self.world)
        with convert_write_errors(self.path):
            take(self.path, me, force, wait)
        self.me = me
        self.thread.start()

    def keep(self) -> None:
        """Renew the lock file periodically, until the lock is released."""
        while not self.over.wait(BEAT):
            self.renew()

    def check(self) -> None:
        """Check, before something is written, that this process still has the lock.

        Another process may have taken it while this one was stopped. Raises ConfigError in that
        case.
        """
        if monotonic() - self.renewed > 2 * BEAT:
            self.renew()
        if self.lost:
            raise ConfigError(self.lost)

    def renew(self) -> None:
        """Renew the lock file; end this process if another one has the lock now."""
        assert self.me is not None
        self.renewed = monotonic()
        with suppress(OSError):  # a disk that is gone for a while
            entry = read(self.path)
            if entry and entry.holder.token == self.me.token:
                os.utime(self.path)
            elif entry:
                self.lose(entry.holder)
            else:
                put(self.path, self.me)

    def lose(self, other: Holder) -> None:
        """End this process, because its further writes would damage the other process's run."""
        text = f"{self.run}: {other} has taken this run folder over; this run ends here"
        if self.end is None:
            self.lost = text
            return
        print(f"hpcfed: {format_error(text)}", file=sys.stderr, flush=True)
        self.end(WRONG)

    def release(self) -> None:
        """Release the lock; does nothing if this process does not hold it."""
        if self.me is None:
            return
        self.over.set()
        self.thread.join()
        with suppress(OSError):
            entry = read(self.path)
            if entry and entry.holder.token == self.me.token:
                self.path.unlink()
        self.me = None


def put(path: Path, me: Holder) -> bool:
    """Make the lock file; return False if there is one already.

    Raises OSError if it cannot be made.
    """
    new = candidate(path, me)
    try:
        return link_file(new, path)
    finally:
        discard(new)


def take(path: Path, me: Holder, force: bool = False, wait: Waiter | None = None) -> None:
    """Make the lock file, or replace that of a dead holder; see `Lock.take`."""
    new, begun = candidate(path, me), monotonic()
    try:
        while not link_file(new, path):
            entry = read(path)
            if entry is None:  # it was released just now
                continue
            os.utime(new)
            now = os.stat(new).st_mtime  # by the file system's clock, as the other file's time
            mine = bool(me.world) and entry.holder.world == me.world
            here = bool(me.machine) and entry.holder.machine == me.machine
            # renewed in the future: the clock was set back; a holder that lives renews it by then
            silent, waited = now - entry.renewed, monotonic() - begun
            forced = (
                force and not here and (silent > ALIVE or (silent < -ALIVE and waited > 2 * BEAT))
            )
            if mine or forced or dead(entry, now, me):
                if replace_holder(path, new, me, entry.holder):
                    return
            elif wait:
                wait(entry.holder, waited)
            elif waited > patience(here, force):
                raise refusal(path, entry, now, here, force)
            sleep(min(max(PAUSE, waited / 10), LONG_PAUSE) if wait else PAUSE)
    finally:
        discard(new)


def patience(here: bool, force: bool) -> float:
    """Return the seconds to wait for a holder that may be about to end, or to renew its file."""
    if here:
        return BEAT if force else ENDING
    return LONGEST if force else 0.0


def tidy(path: Path) -> None:
    """Remove temporary files of processes that were killed while they took the lock `path`."""
    me, now = this_process(""), time()
    for left in glob_folder(path.parent, f"{path.name}.*"):
        with suppress(OSError):
            entry = read(left)
            if entry and dead(entry, now, me):
                left.unlink()


def discard(path: Path) -> None:
    """Remove a temporary file; one that cannot be removed now stays until `tidy`."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def candidate(path: Path, me: Holder) -> Path:
    """Write the contents of the lock file to a temporary file, flush it, and return its path."""
    new = path.with_name(f"{path.name}.{me.token}.new")
    try:
        with open(new, "xb") as file:
            file.write(json.dumps(asdict(me)).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # on a full disk the file exists, but is empty
        discard(new)
        raise
    return new


def link_file(new: Path, path: Path) -> bool:
    """Link the file to this name too; return False if the name is taken.

    A file system without hard links gets a copy, which is made exclusively, but not at once: if
    this process is killed meanwhile, a lock stays that names no process. `refusal` says what to do
    then, and it counts as dead after a quarter of an hour.
    """
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
    content = new.read_bytes()
    try:
        file = open(path, "xb")  # noqa: SIM115  a file system without hard links
    except FileExistsError:
        return False
    try:
        with file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        discard(path)
        raise
    return True


def replace_holder(path: Path, new: Path, me: Holder, old: Holder) -> bool:
    """Replace the lock file of this holder.

    Returns False if another process has replaced it, or is about to.
    """
    mark = path.with_name(f"{path.name}.{old.token or 'unknown'}.old")
    if not link_file(new, mark):
        entry = read(mark)
        if entry and dead(entry, os.stat(new).st_mtime, me):  # it was killed just then
            more = candidate(mark, me)
            try:
                if replace_holder(mark, more, me, entry.holder):
                    discard(mark)
            finally:
                discard(more)
        return False
    try:
        entry = read(path)
        if entry is None or entry.holder.token != old.token:
            return False
        os.replace(new, path)
        return True
    finally:
        discard(mark)


def refusal(path: Path, entry: Found, now: float, here: bool, force: bool) -> ConfigError:
    """Return the error that names the holder of the folder and says what to do."""
    if not entry.holder.token:
        return ConfigError(
            f"out: {path.parent}: its lock {path} names no process: one is writing it, or was "
            "killed while it did; if no run uses this folder, take it with --force after a minute, "
            "or remove that file"
        )
    who = f"out: {path.parent}: another run has this folder: {entry.holder}"
    if here:
        return ConfigError(f"{who}; wait for its end, end it, or give another --out")
    heard = f"{who}, last heard of at {entry.last}"
    if force or abs(now - entry.renewed) <= ALIVE:
        return ConfigError(f"{heard}; wait for its end, end it, or give another --out")
    return ConfigError(
        f"{heard}; this machine cannot tell whether it still runs: if it does not, "
        f"take the folder with --force"
    )
