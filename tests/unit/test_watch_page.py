"""The page of `hpcfed watch --web`: for this machine alone, what has changed, and nothing else.
tests/browser opens it.
"""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcfed import cli
from hpcfed.report.page import write
from hpcfed.report.watch import web
from hpcfed.report.watch.web import Server
from hpcfed.results.run import find, name_runs
from hpcfed.storage.record import FINISHED
from tests import limits, records

LIMIT = limits.COMMAND  # seconds for an answer


@contextmanager
def serving(*paths: Path) -> Iterator[Server]:
    runs = find(paths, required=False)
    name_runs(runs)
    with Server(runs, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(LIMIT)


def ask(
    server: Server, name: str, method: str = "GET", host: str | None = None, path: str | None = None
):
    """Status, headers and body of an answer."""
    connection = HTTPConnection(*server.server_address, timeout=LIMIT)
    connection.putrequest(method, path or f"/{server.key}/{name}", skip_host=host is not None)
    if host:
        connection.putheader("Host", host)
    connection.endheaders()
    answer: HTTPResponse = connection.getresponse()
    return answer.status, dict(answer.headers), answer.read()


@pytest.fixture
def run(tmp_path) -> Path:
    return records.run(tmp_path / "<b>run", 3, total=5).path.parent


def test_it_listens_on_this_machine_alone(run):
    with serving(run) as server:
        assert server.server_address[0] == server.socket.getsockname()[0] == "127.0.0.1"
        assert server.url == f"http://127.0.0.1:{server.server_address[1]}/{server.key}/"


def changes(server: Server, since: int = 0) -> dict[str, Any]:
    status, headers, body = ask(server, f"changes/{since}")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    return json.loads(body)


def test_the_page_is_that_of_the_report_and_loads_from_nowhere_else(run):
    with serving(run) as server:
        status, headers, body = ask(server, "")
        page = body.decode()
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert page.count('id="runs"') == page.count('id="live-runs"') == 1
        assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=\"(?!data:)", page)
        for name in ("", "changes/0", "other"):
            headers = ask(server, name)[1]
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'sha256-")
            assert "unsafe-eval" not in policy and "connect-src 'self'" in policy
            assert policy.endswith("frame-ancestors 'none'")
            assert headers["Cache-Control"] == "no-store"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_a_page_gets_the_changes_since_its_version_and_the_state_of_runs(tmp_path):
    writers = [records.run(tmp_path / name, 2, total=5) for name in ("a", "b")]
    (tmp_path / "c").mkdir()
    with serving(*(tmp_path / name for name in "abc")) as server:
        first = changes(server)
        assert [run["name"] for run in first["data"]["runs"]] == ["a", "b"]
        assert all("curves" in run for run in first["data"]["runs"])
        live = first["live"]
        assert (live["version"], live["over"], live["names"]) == (1, False, ["a", "b", "c"])
        assert live["runs"][0]["line"].startswith("a, round 2/5, accuracy 0.5000, 2 ranks, ")
        assert live["runs"][2]["line"] == "c, round 0/?, accuracy -, not started"
        assert changes(server, 1)["data"] is None
        writers[1].append(records.row(3, 4, 2))
        writers[1].finish()
        second = changes(server, 1)
        assert second["live"]["version"] == 2 and second["live"]["runs"][1]["share"] == 3 / 5
        assert [row["rounds"] for row in second["data"]["rows"]] == [2, 3]
        records.run(tmp_path / "c", 1, total=5)
        third = changes(server, 2)["data"]["runs"]
        assert [run["name"] for run in third] == ["a", "b", "c"]
        assert changes(server, 9)["data"]  # of another server: a page has all of it anew


def test_a_page_before_any_run_has_begun_says_so(tmp_path):
    (tmp_path / "later").mkdir()
    with serving(tmp_path / "later") as server:
        page = ask(server, "")[2].decode()
        assert 'id="live-runs"' in page and 'id="chart-' not in page
        assert changes(server)["live"]["runs"][0]["line"].endswith("not started")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "localhost:x", "0.0.0.0"]
)
def test_another_host_name_that_points_here_is_refused(run, host):
    with serving(run) as server:
        status, _, body = ask(server, "changes/0", host=host)
        assert (status, body) == (404, b"no such page\n")


def test_localhost_and_the_end_of_a_tunnel_are_this_machine_too_but_two_hosts_are_none(run):
    with serving(run) as server:
        port = server.server_address[1]
        for host in (f"LocalHost:{port}", "localhost:8000", "127.0.0.1"):
            assert ask(server, "", host=host)[0] == 200
        with socket.create_connection(server.server_address, LIMIT) as raw:
            host = f"Host: 127.0.0.1:{port}\r\n"
            raw.sendall(f"GET /{server.key}/ HTTP/1.1\r\n{host}{host}\r\n".encode())
            assert b" 404 " in raw.makefile("rb").readline()


def test_without_the_key_of_the_url_nothing_is_served(run):
    with serving(run) as server:
        for path in ("/", "/changes/0", "/wrong/changes/0", f"/{server.key}", f"x/{server.key}/"):
            assert ask(server, "", path=path)[0] == 404, path


@pytest.mark.parametrize(
    "name",
    [
        "results.h5",
        "../results.h5",
        "..%2fresults.h5",
        "page.html",
        "web.py",
        "/etc/passwd",
        "numbers",
        "changes",
        "changes/",
        "changes/0/",
        "changes/0?x",
        "changes/-1",
        "changes/01",
        "changes/1e3",
        "changes/../x",
        "changes/" + "9" * 5000,
        "./",
        "%2e%2e/",
        "\\..\\x",
    ],
)
def test_no_path_of_the_disk_is_served(run, name):
    with serving(run) as server:
        status, _, body = ask(server, name)
        assert (status, body) == (404, b"no such page\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE"])
def test_only_get_is_answered(run, method):
    with serving(run) as server:
        assert ask(server, "changes/0", method=method)[0] == 501


def test_the_server_ends_when_the_page_has_the_end_of_the_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(web, "LAST", 0.0)
    servers, urls = web.Server, []
    monkeypatch.setattr(web, "Server", lambda *args: urls.append(servers(*args)) or urls[0])
    writer, statuses = records.run(tmp_path, 2, total=3), []
    thread = threading.Thread(
        target=lambda: statuses.append(cli.main(["watch", str(tmp_path), "--web"])), daemon=True
    )
    thread.start()
    while not urls:
        thread.join(0.01)
    assert json.loads(ask(urls[0], "changes/0")[2])["live"]["over"] is False and thread.is_alive()
    writer.append(records.row(3, 4, 2))
    writer.header["ended"] = FINISHED
    writer.finish()
    assert json.loads(ask(urls[0], "changes/0")[2])["live"]["over"] is True
    thread.join(LIMIT)
    assert statuses == [0] and urls[0].url in capsys.readouterr().out


def test_a_port_that_is_taken_is_one_message(run, capsys):
    with serving(run) as server:
        assert cli.main(["watch", str(run), "--web", "--port", str(server.server_address[1])]) == 2
    assert "in use; give another" in capsys.readouterr().err


def test_names_are_never_html_and_nan_is_null(tmp_path):
    nasty = "<img src=x onerror=alert(1)>"
    writer = records.run(tmp_path / nasty, 1, total=2, history=[{"rounds": 1, "commit": nasty}])
    writer.append(records.row(2, 4, 2, clients__accuracy=np.array([np.nan, 1, 1, 1])))
    writer.finish()
    with serving(tmp_path / nasty) as server:
        data = changes(server)["data"]
        assert data["runs"][0]["table"]["accuracy"] == [None, 1, 1, 1]
        assert "<img" not in data["above"] + data["below"] + ask(server, "")[2].decode()
    script = "".join(map(write.part, write.SCRIPTS))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)


def test_the_end_of_runs_is_an_answer_and_not_a_missing_page(tmp_path):
    records.run(tmp_path, 3)
    with serving(tmp_path) as server:
        for name in ("", "other"):
            ask(server, name)
            assert not server.notified.is_set()  # a page that has not asked may not be drawn yet
        changes(server)
        assert server.notified.wait(LIMIT)
