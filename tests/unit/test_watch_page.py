"""The page of `hpcfed watch --web`: numbers for this machine alone, and nothing else."""

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from hpcfed import cli
from hpcfed.report.watch import web
from hpcfed.report.watch.view import open_runs
from hpcfed.report.watch.web import Server, plain
from tests import limits, records

LIMIT = limits.COMMAND  # seconds for an answer


@contextmanager
def serving(*paths: Path) -> Iterator[Server]:
    with Server(open_runs(paths), 0) as server:
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


def test_the_page_and_its_parts_are_served_and_load_from_nowhere_else(run):
    with serving(run) as server:
        for name, kind in (
            ("", "text/html"),
            ("page.js", "text/javascript"),
            ("page.css", "text/css"),
        ):
            status, headers, body = ask(server, name)
            assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
            assert set(re.findall(rb"https?://[^\s\"']+", body)) <= {b"http://www.w3.org/2000/svg"}
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == (
                "no-store",
                "nosniff",
            )


def test_numbers_are_those_of_the_view_and_grow_with_the_run(tmp_path):
    writer = records.run(tmp_path / "run", 2, total=5)
    with serving(tmp_path / "run") as server:
        for rounds in (2, 3):
            status, _, body = ask(server, "numbers")
            (found,), seen = json.loads(body)["runs"], server.runs[0].look()
            assert (status, json.loads(body)["over"]) == (200, False)
            assert found["evaluated"] == list(range(1, rounds + 1)) and found["share"] == rounds / 5
            assert found["mean"] == [round(x, 6) for x in seen.mean]
            assert found["phases"]["wait"] == [0.5, 0.0] and found["kinds"] == ["cnn", "mlp"] * 2
            assert found["told"].startswith(f"run, round {rounds}/5, accuracy 0.")
            writer.append(records.row(3, 4, 2))
            writer.finish()


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "localhost:x", "0.0.0.0"]
)
def test_another_host_name_that_points_here_is_refused(run, host):
    with serving(run) as server:
        status, _, body = ask(server, "numbers", host=host)
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


def test_without_the_key_of_the_url_there_is_nothing(run):
    with serving(run) as server:
        for path in ("/", "/numbers", "/wrong/numbers", f"/{server.key}", f"x/{server.key}/"):
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
        "numbers/",
        "numbers?x",
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
        assert ask(server, "numbers", method=method)[0] == 501


def test_the_server_ends_when_the_page_has_the_end_of_the_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(web, "LAST", 0.0)
    made, urls = web.Server, []
    monkeypatch.setattr(web, "Server", lambda *args: urls.append(made(*args)) or urls[0])
    writer, statuses = records.run(tmp_path, 2, total=3), []
    thread = threading.Thread(
        target=lambda: statuses.append(cli.main(["watch", str(tmp_path), "--web"])), daemon=True
    )
    thread.start()
    while not urls:
        thread.join(0.01)
    assert json.loads(ask(urls[0], "numbers")[2])["over"] is False and thread.is_alive()
    writer.append(records.row(3, 4, 2))
    writer.finish()
    assert json.loads(ask(urls[0], "numbers")[2])["over"] is True
    thread.join(LIMIT)
    assert statuses == [0] and urls[0].url in capsys.readouterr().out


def test_a_port_that_is_taken_is_one_message(run, capsys):
    with serving(run) as server:
        assert cli.main(["watch", str(run), "--web", "--port", str(server.server_address[1])]) == 2
    assert "in use; give another" in capsys.readouterr().err


def test_names_are_never_html_and_nan_is_null(tmp_path):
    writer = records.run(tmp_path, 1, total=2)
    writer.append(records.row(2, 4, 2, clients__accuracy=np.array([np.nan, 1, 1, 1])))
    writer.finish()
    found = plain(open_runs([tmp_path])[0].look())
    assert found["clients"] == [None, 1.0, 1.0, 1.0]
    script = (files("hpcfed.report.watch") / "page" / "page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)


def drawn(*paths: Path, browser: Path) -> subprocess.CompletedProcess:
    """The page of these runs as Chromium draws it. browser: a folder for it."""
    program = shutil.which("chromium") or pytest.skip("no chromium on this machine")
    with serving(*paths) as server:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=3000",
            "--enable-logging=stderr",
            f"--user-data-dir={browser}",
            "--dump-dom",
            server.url,
        ]
        return subprocess.run([program, *flags], capture_output=True, text=True, timeout=LIMIT)


def test_bands_are_whole_and_equal_curves_take_turns(tmp_path):
    for name, level in (("a", 0.55), ("b", 0.55), ("c", 0.5)):
        writer = records.run(tmp_path / name, 0, total=3)
        for t in (1, 2, 3):
            accuracy = np.array([0.4, 0.4, level, level]) + t / 10
            writer.append(records.row(t, 4, 2, clients__accuracy=accuracy))
        writer.finish()
    done = drawn(*sorted(tmp_path.iterdir()), browser=tmp_path / "browser")
    points = re.findall(r'<polygon points="([^"]*)"', done.stdout)
    ys = [round(float(y), 6) for one in points for y in re.split("[ ,]", one)[1::2]]
    assert len(points) == 3 and 10 <= min(ys) and max(ys) <= 220 - 36  # TOP, HEIGHT - BOTTOM
    assert re.findall(r'stroke-dasharray="12 12" stroke-dashoffset="-?(\d+)"', done.stdout) == [
        "0",
        "12",
    ]


def test_a_browser_draws_runs_whatever_they_have(tmp_path):
    nobody = {"clients__accuracy": np.array([np.nan, 1, np.nan, 1])}
    for name, rounds in (("once", 1), ("never", 0), ("<img src=x>", 3)):
        writer = records.run(tmp_path / name, rounds, total=9)
        writer.append(records.row(rounds + 1, 4, 2, **nobody))
        writer.finish()
    (tmp_path / "not begun").mkdir()
    done = drawn(*tmp_path.iterdir(), browser=tmp_path / "browser")
    assert "CONSOLE" not in done.stderr  # no script failed, nothing was refused
    assert done.stdout.count('class="card"') == 5  # all curves in one picture, and four runs
    assert done.stdout.count("<svg") == 1 + 3 * 3 and "NaN" not in done.stdout
    assert (
        "<img" not in done.stdout
        and "&lt;img src=x&gt;" in done.stdout
        and "not begun, round 0/?" in done.stdout
    )


def test_however_many_ask_while_one_looks_one_more_look_answers_them_all(run, monkeypatch):
    with serving(run) as server:
        asked, going, go_on = threading.Semaphore(0), threading.Event(), threading.Event()
        looks, look, clock = [], server.look, web.monotonic

        def slow() -> bytes:
            looks.append(look())
            going.set()
            assert go_on.wait(LIMIT)
            return looks[-1]

        def counted() -> float:
            asked.release()
            return clock()

        server.look = slow
        answers: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: answers.append(server.numbers()[1])) for _ in range(50)
        ]
        threads[0].start()
        assert going.wait(LIMIT)
        monkeypatch.setattr(web, "monotonic", counted)
        for thread in threads[1:]:
            thread.start()
        for _ in threads[1:]:
            assert asked.acquire(timeout=LIMIT)
        go_on.set()
        for thread in threads:
            thread.join(LIMIT)
        assert (len(answers), len(looks)) == (50, 2)
        server.numbers()
        assert len(looks) == 3  # who asks later sees what is new
