"""Forks of a process that has imported what runs need, one for each `client.py`.

`main(ADDRESS)` prints "ready", and ends at the end of its standard input, with all forks.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from ctypes import CDLL
from pathlib import Path
from typing import Any, NoReturn

DEATH_OF_PARENT = 1  # the option of prctl
ROOT = str(Path(__file__).parents[2])
# Variables that Python and libraries read when they start or are imported.
PATH = "PYTHONPATH"
AT_IMPORT = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "CUDA_", "LD_PRELOAD", "MALLOC_")
# read later: CUDA's when it is first used, which importing torch does not; torch sets the last one
LATER = (PATH, "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR")


class Server:
    """`data` of a client's event is the fork, as a pidfd; of a fork's: its id and its client."""

    def __init__(self, address: str) -> None:
        self.events = selectors.DefaultSelector()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen(64)
        self.events.register(self.listener, selectors.EVENT_READ)
        self.events.register(0, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any] | None:
        """Fork until standard input ends, which returns None; in a fork, return the request."""
        while True:
            for key, _ in self.events.select():
                if key.fileobj == 0:
                    return None
                if key.fileobj is self.listener:
                    if request := self.accept():
                        return request
                elif isinstance(key.fileobj, socket.socket):  # it has died: it says no more
                    self.events.unregister(key.fileobj)
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(key.data, signal.SIGKILL)
                else:
                    self.report(key.fd, *key.data)

    def accept(self) -> dict[str, Any] | None:
        """Fork for a client; in the fork, return the request."""
        client, _ = self.listener.accept()
        _, streams, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile() as lines:
            request = json.loads(lines.readline() or "{}")
        pid = os.fork() if request and can_fork(request) else None
        if pid == 0:
            self.close()
            client.close()
            become(request, streams)
            return request
        for stream in streams:
            os.close(stream)
        with suppress(ConnectionError):
            client.sendall(f"{pid or 0}\n".encode())
        if pid is None:
            client.close()
        else:
            fork = os.pidfd_open(pid)
            self.events.register(fork, selectors.EVENT_READ, (pid, client))
            self.events.register(client, selectors.EVENT_READ, fork)
        return None

    def close(self) -> None:
        """Close in a fork what is the server's alone."""
        for key in list(self.events.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            elif key.fd:
                os.close(key.fd)
        self.events.close()

    def report(self, fork: int, pid: int, client: socket.socket) -> None:
        """Tell a client the status with which its fork has ended."""
        _, status = os.waitpid(pid, 0)
        for source in (fork, client):
            with suppress(KeyError):  # a client that died before
                self.events.unregister(source)
        os.close(fork)
        with client, suppress(ConnectionError):
            client.sendall(f"{status}\n".encode())


def can_fork(request: dict[str, Any]) -> bool:
    """Return whether a fork is what a new process would be."""

    def read_at_import(env: dict[str, str]) -> dict[str, str]:
        return {
            name: value
            for name, value in env.items()
            if name.startswith(AT_IMPORT) and name not in LATER
        }

    _, *words = request["argv"]
    has_form = words and (words[0] in ("-m", "-c") or not words[0].startswith("-"))
    has_hpcfed = ROOT in places(request["env"])
    same = read_at_import(request["env"]) == read_at_import(dict(os.environ))
    return has_form and has_hpcfed and same


def places(env: dict[str, str]) -> list[str]:
    return env.get(PATH, "").split(os.pathsep)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Make this fork the process that was asked for."""
    CDLL(None).prctl(DEATH_OF_PARENT, signal.SIGKILL)
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.chdir(request["cwd"])
    usual = sys.path[1 + len(places(dict(os.environ))) :]
    sys.path[1:] = [*places(request["env"]), *usual]
    os.environ.clear()
    os.environ.update(request["env"])
    sys.executable = request["argv"][0]


def run_program(argv: list[str]) -> int:
    """Run what Python would run and return the exit status; an error ends Python as usual."""
    try:
        run(argv)
    except SystemExit as stop:
        if not isinstance(stop.code, int | None):
            raise
        return stop.code or 0
    return 0


def end(status: int) -> NoReturn:
    """End as Python does, but free nothing: to free what the server had imported copies its pages,
    which takes each fork a quarter of a second.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py and mpi4py.Is_initialized() and not mpi4py.Is_finalized():
        mpi4py.Finalize()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


def run(argv: list[str]) -> None:
    """Do what Python does with these arguments."""
    match argv:
        case ["-m", module, *rest]:
            sys.modules.pop(module, None)
            sys.argv, sys.path[0] = ["-m", *rest], os.getcwd()
            runpy._run_module_as_main(module)
        case ["-c", code, *rest]:
            sys.argv, sys.path[0] = ["-c", *rest], ""
            exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
        case [script, *_]:
            sys.argv, sys.path[0] = argv, str(Path(script).resolve().parent)
            runpy.run_path(script, run_name="__main__")


def main(address: str) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    import hpcfed.main  # noqa: F401

    assert len(os.listdir("/proc/self/task")) == 1, "a fork has one thread of its parent's"
    gc.freeze()
    print("ready", flush=True)
    request = Server(address).serve()
    if request:
        gc.enable()
        status = run_program(request["argv"][1:])
        end(status)
