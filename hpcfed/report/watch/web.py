"""`hpcfed watch --web`: one page on this machine alone that asks for the runs' numbers and draws
them.

It answers GET for four names, and nothing else: no name is ever taken for a path of the disk. A web
site that has its own name point here (DNS rebinding) is refused by the Host header, another user of
this machine by the key in the URL.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from socketserver import ThreadingTCPServer
from threading import Event, Lock, Thread
from time import monotonic, sleep, time
from typing import Any

import numpy as np

from hpcfed.core.errors import ConfigError, printable
from hpcfed.core.few import evenly
from hpcfed.core.status import DONE
from hpcfed.report import colours
from hpcfed.report.status import words
from hpcfed.report.watch.terminal import format_rounds, pace
from hpcfed.report.watch.view import View, Watched
from hpcfed.results.summary import share

HOST = "127.0.0.1"
OURS = re.compile(
    r"(127\.0\.0\.1|localhost)(:\d+)?", re.IGNORECASE
)  # any port: ssh -L may have made it another
PAGE = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
SAFE = {  # of every answer: what the page may load, and that nobody else may show, keep or guess it
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
POINTS = 400  # of a curve, at most
LAST = 2.0  # seconds: the page may still be loading when it has the last numbers


def serve(runs: Sequence[Watched], port: int) -> int:
    """Answer until the page has been given the last numbers of runs that are all over. Returns the
    exit status.
    """
    with Server(runs, port) as server:
        advice = "(Ctrl-C ends it; it ends by itself when the page has shown the runs' end)"
        print(printable(f"{server.url}  {advice}"), flush=True)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            server.told.wait()
            sleep(LAST)
        finally:
            server.shutdown()
    return DONE


class Server(ThreadingTCPServer):
    """Serves on HOST alone. url: of the page, with a key that only who reads this terminal knows.

    Raises ConfigError where the port is not to be had. port 0: one that is free.
    """

    daemon_threads = allow_reuse_address = True
    request_queue_size = 128  # pages that ask at the same moment; of more the system lets some wait

    def __init__(self, runs: Sequence[Watched], port: int):
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"watch: --port {port}: {error.strerror}; give another, or none"
            ) from error
        self.runs, self.looking = runs, Lock()
        self.seen, self.last = -1.0, b""  # when the last look began, and what it found
        self.key = secrets.token_urlsafe(12)
        self.url = f"http://{HOST}:{self.server_address[1]}/{self.key}/"
        self.over, self.told = False, Event()  # the runs' end is known; the page knows it too
        self.answers = {name: (kind, page(file)) for name, (file, kind) in PAGE.items()}

    def handle_error(self, *about: Any) -> None:
        """A page that is closed while it is answered is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*about)

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Kind and content of what a path names; None where it names nothing."""
        key, slash, name = path.removeprefix("/").partition("/")
        if not (slash and secrets.compare_digest(key.encode(), self.key.encode())):
            return None
        return self.numbers() if name == "numbers" else self.answers.get(name)

    def numbers(self) -> tuple[str, bytes]:
        """All runs as they are now. Who asks while others wait has the answer to the first look
        that began after the question: however many ask, two looks are enough.
        """
        asked = monotonic()
        with self.looking:
            if self.seen < asked:
                self.seen, self.last = monotonic(), self.look()
            return "application/json", self.last

    def look(self) -> bytes:
        """The numbers of all runs."""
        views = [run.look() for run in self.runs]
        self.over = all(view.over for view in views)
        answer = {"over": self.over, "runs": list(map(plain, views)), **colours.for_scripts()}
        return json.dumps(answer, allow_nan=False).encode()


class Handler(BaseHTTPRequestHandler):
    """One request: GET alone; any other method is answered with 501 by the class that this one
    extends.
    """

    server: Server
    server_version, sys_version = "hpcfed", ""
    timeout = 10.0  # seconds for a request to come

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        found = (
            self.server.answer(self.path) if len(hosts) == 1 and OURS.fullmatch(hosts[0]) else None
        )
        kind, content = found or ("text/plain", b"no such page\n")
        self.send_response(200 if found else 404)
        about = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in (about | SAFE).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        if self.server.over:
            self.server.told.set()

    def log_message(self, *_: Any) -> None:
        """Says nothing of requests."""


def page(file: str) -> bytes:
    return (files("hpcfed.report.watch") / "page" / file).read_bytes()


def plain(view: View) -> dict[str, Any]:
    """A view as JSON types; of long curves every so many rounds, the last included."""
    kept = evenly(len(view.mean), POINTS)
    return {
        "name": view.name,
        "title": view.title,
        "told": describe_view(view),
        "share": view.state.rounds / (view.state.total or 1),
        **{
            name: [round_number(getattr(view, name)[i]) for i in kept]
            for name in ("evaluated", "mean", "std")
        },
        "phases": {
            name: list(map(round_number, seconds.tolist())) for name, seconds in view.phases.items()
        },
        "clients": list(map(round_number, view.clients.tolist())),
        "kinds": view.kinds.tolist(),
        "warnings": view.warnings,
    }


def describe_view(view: View) -> str:
    """A run in a line."""
    parts = [
        view.name,
        f"round {format_rounds(view)}",
        f"accuracy {share(view.mean[-1] if view.mean else None)}",
    ]
    return ", ".join([*parts, *pace(view.state, time()), words(view.state)])


def round_number(number: float) -> float | None:
    """With as many digits as a picture shows; None for nan."""
    return round(number, 6) if np.isfinite(number) else None
