"""`hpcfed.run(...)`: a run from a script or a notebook, in this process or on ranks of its own.

The process continues afterwards: its settings and signal handlers are restored, and errors are
exceptions.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from hpcfed.comm.connect import detect_launcher
from hpcfed.comm.serial import Serial
from hpcfed.config.layers import PREFIX
from hpcfed.config.load import Given, load
from hpcfed.config.write import to_toml
from hpcfed.core import user_code
from hpcfed.core.errors import WARNING, CheckpointError, ConfigError, HpcfedError, StoppedError
from hpcfed.core.exit_status import DONE, RESUME_ME, as_shells_count
from hpcfed.engine import folder
from hpcfed.engine.fault_tolerance.supervise import MAIN, Process
from hpcfed.engine.run import run_here
from hpcfed.launch.given import Call, check_importable
from hpcfed.launch.sweep.launch import UNBOUND, find_launcher
from hpcfed.machine.error_messages import ADVICE, out_of_memory
from hpcfed.machine.settings import usual_settings
from hpcfed.models import cost, widths
from hpcfed.report.progress import Rounds
from hpcfed.results.run import Run
from hpcfed.storage.record import load as load_results

ONE = threading.Lock()  # held by the run of this process
LOOK = 0.2  # seconds between two polls of a run on ranks of its own
SIGNALLED = 128  # what a shell adds to the number of the signal that ended a process
LINES = 30  # last lines of their output that are shown without a message of hpcfed
SAYS = "hpcfed: "  # prefix of hpcfed's messages
RULE = "-----"  # above and below messages of launchers


def run(
    job: Any = None,
    *,
    ranks: int = 1,
    resume: bool | str | Path = False,
    launcher: str = "",
    **fields: Any,
) -> Run:
    """Run a job and return its results; see the docstring of `hpcfed.run`."""
    if not isinstance(ranks, int) or ranks < 1:
        raise ConfigError(f"hpcfed.run: ranks = {ranks!r}: give a whole number from 1")
    name, size = detect_launcher(os.environ)
    if size != 1:
        raise ConfigError(
            f"hpcfed.run: this script was itself started as one of several processes ({name}); "
            "start it without a launcher, and give ranks = ... instead"
        )
    call = Call(job, fields)
    with ExitStack() as stack:
        stack.enter_context(user_code.lend(call.lent))
        forget_own_models()
        stack.callback(forget_own_models)
        checked_job = checked(call, resume)
        written = call.store(checked_job)
        try:
            if ranks == 1 and not launcher:
                status, number = here(checked_job)
            else:
                check_importable(call.lent, ranks)
                status, number = beside(checked_job, ranks, launcher)
        except HpcfedError:
            if not folder.holds(checked_job.folder):  # refused before the first round
                for file in written:
                    file.unlink(missing_ok=True)
            raise
        place = folder.of(checked_job)
    if status == RESUME_ME or number is not None:  # a signal may come when all is done
        stopped(number, place)
    return Run(place)


def forget_own_models() -> None:
    """Clear the caches of facts about models by name.

    A name may stand for another function now, if a cell of a notebook was run again.
    """
    cost.work.cache_clear()
    widths.structure.cache_clear()


def checked(call: Call, resume: bool | str | Path) -> Any:
    """Return the job, checked as the command checks it."""
    words, arguments = [str(file) for file in call.files], call.arguments
    with own_folder():
        if resume is True:
            arguments = with_field(arguments, "resume", where_it_is(words, arguments))
        elif resume:
            arguments = with_field(arguments, "resume", str(resume))
        job = load(words, folder.read_job, arguments=arguments)
    if job.dry_run:
        raise ConfigError(
            "hpcfed.run: dry_run: a call returns the results of a run, and a dry run has none; "
            "`hpcfed run JOB.toml --dry-run` prints what a job would do"
        )
    if not (job.resume or job.overwrite) and folder.holds(job.folder):
        raise ConfigError(
            f"hpcfed.run: out: {job.folder} holds a run already; resume=True continues it, "
            "overwrite=True replaces it; or give another out"
        )
    return job


def own_folder() -> ExitStack:
    """Return a context in which methods and models in the current folder can be imported.

    This is as with `python -m`.
    """
    stack = ExitStack()
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, "")
        stack.callback(sys.path.remove, "")
    return stack


def with_field(arguments: Given, name: str, value: str | None) -> Given:
    return arguments if value is None else Given(arguments.job, arguments.fields | {name: value})


def where_it_is(words: Sequence[str], arguments: Given) -> str | None:
    """Return the folder of the run that this job has begun; None if there is none to continue."""
    place = load(words, folder.read_job, arguments=arguments).folder
    return str(place) if folder.holds(place) else None


def here(job: Any) -> tuple[int, int | None]:
    """Run the job in this process; return the exit status and the signal that stopped it."""
    if not ONE.acquire(blocking=False):
        raise ConfigError(
            "hpcfed.run: another run is in progress in this process, and torch's settings are "
            "those of one; wait for its end, or give ranks = 2, which starts processes of its own"
        )
    try:
        with usual_settings(), own_folder():
            return run_here(job, Serial())
    except HpcfedError:
        raise
    except (Exception, SystemExit) as error:
        if out_of_memory(error):
            raise HpcfedError(f"out of memory: {error}; {ADVICE}") from error
        if theirs := user_code.explain_error(error):
            raise user_code.OwnError(theirs) from error
        raise
    finally:
        ONE.release()


def beside(job: Any, ranks: int, launcher: str) -> tuple[int, int | None]:
    """Run the job on ranks of its own, and show their progress.

    Returns the exit status, and the signal that stopped it.
    """
    words = find_launcher("hpcfed.run", ranks, launcher, "give launcher = ...")
    with tempfile.TemporaryDirectory(prefix="hpcfed-run-") as scratch:
        file, said = Path(scratch) / "job.toml", Path(scratch) / "said.txt"
        file.write_text(to_toml(job.plain()), encoding="utf-8")
        words += [sys.executable, "-m", MAIN, str(file)]
        process = Process()
        options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "env": environment(job)}
        with (
            open(said, "wb") as log,
            process.started(words, "hpcfed.run", stderr=log, **options) as child,
        ):
            watch(child, job, said)
            status = child.wait()
        text = said.read_text(encoding="utf-8", errors="replace")
    if process.got and as_shells_count(status) > SIGNALLED:  # before the ranks heeded signals
        return RESUME_ME, process.got
    if status not in (DONE, RESUME_ME):
        raise HpcfedError(reason(text, status))
    if status == RESUME_ME and process.got is None:
        raise StoppedError(reason(text, status))
    return status, process.got


def environment(job: Any) -> dict[str, str]:
    """Return the environment of the ranks.

    The job is complete, so variables that set its fields are removed. The ranks find the modules
    that this process finds.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    path = os.pathsep.join(os.path.abspath(place) for place in sys.path if os.path.isdir(place))
    threads = {"OMP_NUM_THREADS": str(job.run.threads)}
    return UNBOUND | threads | variables | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def watch(child: subprocess.Popen[bytes], job: Any, said: Path) -> None:
    """Show new rounds and warnings until the process has ended."""
    place, position, begun = folder.of(job), 0, time.time()
    with Rounds(job) as shown:
        while True:
            over = child.poll() is not None
            lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
            for line in lines[position : len(lines) if over else -1]:
                if line.startswith(WARNING):
                    print(line, file=sys.stderr, flush=True)
            position = max(position, len(lines) - (not over))
            shown.show(rounds_of(place, begun))
            if over:
                return
            time.sleep(LOOK)


def rounds_of(place: Path, since: float) -> Any:
    """Return the present record of a run; None if it has written nothing since then."""
    try:
        record = load_results(place)
        return record if os.path.getmtime(record.path) >= since - 1 or record.rounds else None
    except (CheckpointError, OSError):
        return None


def reason(text: str, status: int) -> str:
    """Return the ranks' message about why they ended: hpcfed's, or else their last lines."""
    lines = text.splitlines()
    starts = [
        i for i, line in enumerate(lines) if line.startswith(SAYS) and not line.startswith(WARNING)
    ]
    if not starts:
        last = [line for line in lines if line.strip()][-LINES:]
        return "\n".join([f"the ranks ended with status {status}; they said last:", *last])
    message = [lines[starts[0]].removeprefix(SAYS)]
    for line in lines[starts[0] + 1 :]:
        if not line.startswith(" ") or line.startswith(RULE):
            break
        message.append(line)
    return "\n".join(message)


def stopped(number: int | None, place: Path) -> NoReturn:
    """Pass on the signal that stopped the run, after everything is saved."""
    text = f"the run is saved in {place}; hpcfed.run(..., resume=True) continues it"
    if number == signal.SIGINT:
        raise KeyboardInterrupt(text)
    if number is not None:
        signal.raise_signal(number)  # its effect is up to the calling program
    raise StoppedError(text)
