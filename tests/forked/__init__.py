"""Python processes that start without their imports: torch alone costs each two seconds.

`python()` is a program that stands for this Python in a command. Its process (`client.py`) asks the
server of these tests (`server.py`), which has imported torch and hpcfed, for a fork, and stands for
it before its parents: streams, environment, folder, signals and exit status are passed on, and if
one of the two dies, so does the other. A signal that no process can pass on (SIGSTOP) goes to the
fork itself: `fork_of`. Python processes that a fork starts by `sys.executable` are forks, too.
Beside the program there is `hpcfed`, another fork.

All forks have one seed of hashes. A process that needs another environment than the server's in
what Python and libraries read when they start, or an option of Python's, is none: it starts as
usual.
"""

import atexit
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests import limits

FOLDER = Path(__file__).parent
PROGRAM = """#!{python} -IS
import sys
sys.path.insert(0, {folder!r})
from client import main
main({socket!r}, {python!r}, {words!r} + sys.argv[1:])
"""


@cache
def python() -> str:
    """The program, which ends with this process, as its server does."""
    from tests.mpirun import environment, temporary  # which imports this module

    folder = Path(temporary().name, "forks")
    folder.mkdir()
    python, program, socket = sys.executable, str(folder / "python"), str(folder / "socket")
    for name, words in (("python", []), ("hpcfed", ["-m", "hpcfed.cli"])):
        text = PROGRAM.format(
            folder=str(FOLDER), socket=socket, python=python, words=[program, *words]
        )
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if mpirun := shutil.which("mpirun", path=str(Path(python).parent)):
        (folder / "mpirun").symlink_to(mpirun)  # hpcfed looks for it beside its Python
    server = subprocess.Popen(
        [python, "-c", f"from tests.forked import server; server.main({socket!r})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment({}),
        start_new_session=True,
    )
    atexit.register(stop, server)
    assert server.stdout.readline() == b"ready\n"
    return program


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server: it ends, with its forks, when nobody can write to it."""
    server.stdin.close()
    server.wait(limits.COMMAND)


def fork_of(pid: int) -> int:
    """The process for which this one stands; itself if it stands for none."""
    process = Path(f"/proc/{pid}")
    while stands_for_a_fork(process):
        name = (process / "comm").read_text().strip()
        if name.startswith("fork "):
            return int(name.removeprefix("fork "))
        os.sched_yield()  # it has just asked for its fork
    return pid


def stands_for_a_fork(process: Path) -> bool:
    if not python.cache_info().currsize:  # there is no server
        return False
    match (process / "cmdline").read_bytes().split(b"\0"):
        case [_, b"-IS", program, *_]:
            return os.fsdecode(program).startswith(str(Path(python()).parent))
    return False
