"""`hpcfed watch --web`: the page of `hpcfed report` with live changes, on this machine only."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Event, Lock, Thread
from time import sleep, time
from typing import Any

from hpcfed.core.errors import ConfigError, printable
from hpcfed.core.exit_status import DONE
from hpcfed.core.wording import count_noun
from hpcfed.report.page import command, write
from hpcfed.report.status import format_rounds, metric_cell
from hpcfed.report.watch.terminal import pace
from hpcfed.report.watch.view import View, look
from hpcfed.results.columns import title_metric
from hpcfed.results.run import Run
from hpcfed.results.state import words

HOST = "127.0.0.1"
# any port, because ssh -L may change it
OURS = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?", re.IGNORECASE)
CHANGES = re.compile(r"changes/(0|[1-9]\d{0,8})")  # changes since the version that the page has
SAFE = {  # headers of every answer: no embedding, caching or sniffing
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
LAST = 2.0  # seconds: the page may still be loading when it has the last numbers


def serve(runs: Sequence[Run], port: int) -> int:
    """Serve until the page has received the last numbers of runs that are all over.

    Returns the exit status.
    """
    with Server(runs, port) as server:
        advice = "(Ctrl-C ends it; it ends by itself when the page has shown the runs' end)"
        print(printable(f"{server.url}  {advice}"), flush=True)
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            server.notified.wait()
            sleep(LAST)
        finally:
            server.shutdown()
    return DONE


class Server(ThreadingTCPServer):
    """Server of the page, reachable on HOST only.

    url: of the page, with a key that only readers of this terminal know.
    port: 0 for a free one.
    The page has a version, which grows when a run has written something or its state has changed.
    Raises ConfigError if the port is not available.
    """

    daemon_threads = allow_reuse_address = True

    def __init__(self, runs: Sequence[Run], port: int):
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"watch: --port {port}: {error.strerror}; give another, or none"
            ) from error
        self.runs, self.looking = runs, Lock()
        self.views: list[View | None] = [None] * len(runs)
        self.version = 0
        self.policy = f"{write.policy(live=True)}; frame-ancestors 'none'"
        self.key = secrets.token_urlsafe(12)
        self.url = f"http://{HOST}:{self.server_address[1]}/{self.key}/"
        self.over, self.notified = False, Event()  # the runs are over; the page knows

    def handle_error(self, *about: Any) -> None:
        """Ignore errors of a page that was closed while it was answered."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*about)

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return content type and content for a path; None if there is nothing at it."""
        key, slash, name = path.removeprefix("/").partition("/")
        if not (slash and secrets.compare_digest(key.encode(), self.key.encode())):
            return None
        since = CHANGES.fullmatch(name)
        if name and not since:
            return None
        with self.looking:
            live = self.look()
            begun = [run for run in self.runs if run.begun]  # the others are in `live` alone
            if not since:
                return "text/html", command.render_page(begun, live=live).encode()
            new = int(since[1]) != self.version
            data = command.changes(begun, live=True) if new else None
        return "application/json", json.dumps(
            {"live": live, "data": data}, allow_nan=False
        ).encode()

    def look(self) -> dict[str, Any]:
        """Read the present views of all runs, and return their states."""
        views = [look(run, before) for run, before in zip(self.runs, self.views, strict=True)]
        if any(differ(new, old) for new, old in zip(views, self.views, strict=True)):
            self.version += 1
        self.views, self.over = [*views], all(view.over for view in views)
        return {
            "version": self.version,
            "over": self.over,
            "names": [run.name for run in self.runs],
            "runs": [describe_run(view) for view in views],
        }


def differ(new: View, old: View | None) -> bool:
    """Return whether a run has another record, or another state."""
    return old is None or new.record is not old.record or new.state.word != old.state.word


class Handler(BaseHTTPRequestHandler):
    """Handler of one request; methods other than GET get status 501 from the base class."""

    server: Server
    server_version, sys_version = "hpcfed", ""
    timeout = 10.0  # seconds to receive a request

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        ours = len(hosts) == 1 and OURS.fullmatch(hosts[0])
        answer = self.server.answer(self.path) if ours else None
        kind, content = answer or ("text/plain", b"no such page\n")
        self.send_response(200 if answer else 404)
        about = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": self.server.policy,
        }
        for name, value in (about | SAFE).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        if kind == "application/json" and self.server.over:
            self.server.notified.set()

    def log_message(self, *_: Any) -> None:
        """Do not log requests."""


def describe_run(view: View) -> dict[str, Any]:
    """Return the state of a run as JSON types.

    These are a title, a line of text, the share of rounds done, and its warnings.
    """
    name = title_metric(view.state.metric)
    parts = [
        view.name,
        f"round {format_rounds(view.state)}",
        f"{name} {metric_cell(view.state, name)}",
        *([count_noun(view.record.header["ranks"], "rank")] if view.record else []),
    ]
    return {
        "title": view.title,
        "line": ", ".join([*parts, *pace(view.state, time()), words(view.state)]),
        "share": view.state.rounds / (view.state.total or 1),
        "warnings": view.warnings,
    }
