"""Downloads: one process at a time per data folder, and nobody sees half a file."""

import errno
import gzip
import io
import os
import subprocess
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.compat import import_torchvision
from hpcfed.core.errors import DataError
from hpcfed.data import download, har, heart, vision
from hpcfed.data.datasets import load
from hpcfed.storage import lock
from hpcfed.storage.lock import ALIVE, Lock, this_process
from tests import forked, limits
from tests.mpirun import environment, kill
from tests.unit.test_lock import put
from tests.unit.test_natural import hospital
from tests.unit.test_text import save_csv

HAR = """
import sys
from pathlib import Path
from hpcfed.data import download, har
download.PATIENCE = 0.0
har.fetch("uci-har", Path(sys.argv[1]), sys.argv[2])
print("done", flush=True)
"""
MNIST = """
import os, sys
from pathlib import Path
from hpcfed.core.compat import import_torchvision
from hpcfed.data import download
from hpcfed.data.datasets import load
download.PATIENCE = 0.0
kind = import_torchvision().datasets.MNIST
kind.mirrors, kind.resources = [sys.argv[2]], [(name, None) for name, _ in kind.resources]
print(child := os.fork(), flush=True)  # it downloads; this process begins at a line of input
child and sys.stdin.readline()
print(len(load("mnist", Path(sys.argv[1])).train.y), flush=True)
child and os.wait()
"""


class Server(ThreadingHTTPServer):
    """Serves `content` by path, and holds each answer back until `go` is set.

    asked: paths of the requests. missing_bytes: by which an answer is shorter than it says.
    """

    daemon_threads = True

    def __init__(self, content: Callable[[str], bytes | None]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.go, self.asked = content, threading.Event(), []
        self.missing_bytes = 0
        self.request_came = threading.Semaphore(0)

    def url(self, path: str = "") -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def wait_for_request(self) -> None:
        assert self.request_came.acquire(timeout=limits.COMMAND)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path[1:])
        self.server.request_came.release()
        self.server.go.wait(limits.COMMAND)
        content = self.server.content(self.path[1:])
        if content is None:
            self.send_error(503, "closed for today")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - self.server.missing_bytes])

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], bytes | None]], Server]]:
    servers = []

    def start(content: Callable[[str], bytes | None]) -> Server:
        servers.append(Server(content))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.go.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """Start a process that downloads."""
    processes = []

    def begin(code: str, root: Path, url: str) -> subprocess.Popen:
        processes.append(
            subprocess.Popen(
                [forked.python(), "-c", code, str(root), url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment({}),
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def archive() -> bytes:
    """The archive of UCI-HAR, with the names of its files and nothing that can be read."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for part in ("train", "test"):
            for name in har.files(part):
                packed.writestr(f"{har.FOLDER}/{name}", "1 2 3\n")
    return file.getvalue()


def idx_gz(path: str) -> bytes:
    """A file of MNIST: three images or labels of zeros."""
    shape = (3, 28, 28) if "images" in path else (3,)
    header = np.array([2048 + len(shape), *shape], ">i4").tobytes()
    return gzip.compress(header + bytes(int(np.prod(shape))))


def visible(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.startswith("."))


def waiting_line(process: subprocess.Popen) -> str:
    """What a process says on stderr when it begins to wait."""
    return process.stderr.readline()


def test_one_process_downloads_and_the_others_wait_and_find_the_files(tmp_path, serve, start):
    server = serve(lambda path: archive())
    one = start(HAR, tmp_path, server.url())
    server.wait_for_request()
    others = [start(HAR, tmp_path, server.url()) for _ in range(2)]
    for other in others:
        said = waiting_line(other)
        pid = forked.fork_of(one.pid)
        assert f"uci-har: waiting for process {pid} of " in said and str(tmp_path) in said
    assert visible(tmp_path) == []
    server.go.set()
    for process in (one, *others):
        out, err = process.communicate(timeout=limits.COMMAND)
        assert (out, err) == ("done\n", "") and process.returncode == 0
    assert len(server.asked) == 1
    assert os.listdir(tmp_path) == [har.FOLDER]


def test_torchvisions_download_is_unseen_until_it_is_complete(tmp_path, serve, start):
    server = serve(idx_gz)
    both = start(MNIST, tmp_path, server.url())
    server.wait_for_request()
    one = min({int(both.stdout.readline()) for _ in range(2)} - {0})
    print(file=both.stdin, flush=True)
    assert f"mnist: waiting for process {one}" in waiting_line(both)
    assert visible(tmp_path) == []
    server.go.set()
    assert both.communicate(timeout=limits.COMMAND)[0] == "3\n3\n"
    assert len(set(server.asked)) == 4 and os.listdir(tmp_path) == ["MNIST"]
    assert all((tmp_path / file).exists() for file in vision.SOURCES["mnist"].files)


def test_a_killed_process_is_replaced_and_what_it_left_is_no_data(tmp_path, serve, start):
    server = serve(lambda path: archive())
    one = start(HAR, tmp_path, server.url())
    server.wait_for_request()
    other = start(HAR, tmp_path, server.url())
    assert waiting_line(other)
    kill(forked.fork_of(one.pid))
    server.go.set()
    assert other.communicate(timeout=limits.COMMAND)[0] == "done\n"
    assert len(server.asked) == 2 and visible(tmp_path) == [har.FOLDER]


def test_after_a_failed_download_the_next_process_tries(tmp_path, serve, start):
    server = serve(lambda path: None)
    one = start(HAR, tmp_path, server.url())
    server.wait_for_request()
    other = start(HAR, tmp_path, server.url())
    assert waiting_line(other)
    server.go.set()
    for process in (one, other):
        assert "closed for today" in process.communicate(timeout=limits.COMMAND)[1]
    assert len(server.asked) == 2
    assert os.listdir(tmp_path) == []


def test_a_holder_on_another_machine_that_has_been_silent_for_a_minute_is_replaced(tmp_path):
    (tmp_path / "archive.zip").write_bytes(archive())
    far = replace(this_process(""), host="node7", machine="another boot", job="", restart=0)
    put(tmp_path, far, ALIVE + 5)
    (root := tmp_path / "data").mkdir()
    os.rename(tmp_path / "run.lock", root / download.LOCK)
    har.fetch("uci-har", root, (tmp_path / "archive.zip").as_uri())
    assert os.listdir(root) == [har.FOLDER]


def test_data_that_are_present_or_not_to_be_downloaded_are_read_without_a_lock(
    tmp_path, monkeypatch
):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("locked")

    monkeypatch.setattr(Lock, "take", refuse)
    for name in ("uci-har", "sentiment140", "heart-disease", "celeba", "mnist", "cifar10"):
        with pytest.raises(DataError):
            load(name, tmp_path / "nowhere", download=False)
    assert not (tmp_path / "nowhere").exists()
    for file in vision.SOURCES["mnist"].files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(gzip.decompress(idx_gz(file)))
    for file in heart.FILES:
        hospital(tmp_path / file, 9)
    save_csv(tmp_path)
    before = sorted(os.listdir(tmp_path))
    assert len(load("mnist", tmp_path).train.y) == 3
    assert len(load("heart-disease", tmp_path).classes) == 2
    assert len(load("sentiment140", tmp_path).train.y) == 3
    assert sorted(os.listdir(tmp_path)) == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(lock, "candidate", refuse)
    with pytest.raises(DataError, match=f"(?s)expected there.*Read-only file system: '{tmp_path}'"):
        load("uci-har", tmp_path)


def test_a_file_that_ends_early_is_refused_and_leaves_nothing(tmp_path, serve):
    server = serve(lambda path: b"63,1\n" * 100)
    server.missing_bytes = 7
    server.go.set()
    with pytest.raises(DataError, match="ended after 493 of 500 bytes"):
        heart.fetch(tmp_path, server.url())
    assert os.listdir(tmp_path) == []


def test_archives_that_lie_there_are_unpacked_and_not_downloaded(tmp_path, monkeypatch):
    kind = import_torchvision().datasets.MNIST
    monkeypatch.setattr(kind, "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setattr(kind, "resources", [(name, None) for name, _ in kind.resources])
    archives = [tmp_path / file for file in vision.SOURCES["mnist"].archives]
    archives[0].parent.mkdir(parents=True)
    for path in archives:
        path.write_bytes(idx_gz(path.name))
    assert len(load("mnist", tmp_path).train.y) == 3
    assert all((tmp_path / file).exists() for file in vision.SOURCES["mnist"].files)
    assert os.listdir(tmp_path) == ["MNIST"] and all(path.exists() for path in archives)


def test_damaged_files_of_torchvision_are_replaced(tmp_path, monkeypatch):
    kind = import_torchvision().datasets.SVHN

    def intact(self) -> bool:
        return Path(self.root, self.filename).read_bytes() == b"intact"

    monkeypatch.setattr(kind, "_check_integrity", intact)
    monkeypatch.setattr(
        kind, "download", lambda self: Path(self.root, self.filename).write_bytes(b"intact")
    )
    monkeypatch.setattr(
        "scipy.io.loadmat",
        lambda path: {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[10], [3]])},
    )
    for file in vision.SOURCES["svhn"].files:
        (tmp_path / file).write_bytes(b"cut o")
    with pytest.raises(DataError, match="corrupted"):
        load("svhn", tmp_path, download=False)
    assert load("svhn", tmp_path).train.y.tolist() == [0, 3]
    assert {(tmp_path / file).read_bytes() for file in vision.SOURCES["svhn"].files} == {b"intact"}
