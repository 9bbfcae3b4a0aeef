"""Stands for a fork of the server, as its parent sees it. Imports little: it starts in 20 ms."""

import json
import os
import signal
import socket
from contextlib import suppress

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(address: str, python: str, argv: list[str]) -> None:
    """Be `python` with these arguments, of which the first is the program."""
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # until there is a fork to pass them to
    request = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as server, server.makefile("rw") as lines:
        server.connect(address)
        socket.send_fds(server, [b"+"], [0, 1, 2])
        print(json.dumps(request), file=lines, flush=True)
        pid = int(lines.readline())
        if not pid:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            os.execv(python, [python, *argv[1:]])
        with open("/proc/self/comm", "w") as name:
            name.write(f"fork {pid}")
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # the fork's alone, so that they end when it closes them
            os.dup2(nothing, stream)
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: pass_on(pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        status = os.waitstatus_to_exitcode(int(lines.readline()))
    if status < 0:
        if -status in PASSED_ON:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def pass_on(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended, and its status is on its way
        os.kill(pid, number)
