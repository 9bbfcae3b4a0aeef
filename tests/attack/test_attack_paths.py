"""Names of files and folders, as odd as a file system allows: used as they are, and never as
anything else.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests import forked, limits
from tests.attack.claims import TINY, command, refused, run
from tests.attack.test_attack_data import saved
from tests.mpirun import environment

NAMES = {
    "shell": "a b'\"$(touch harm)`touch harm`;&|*?[x]#%s{0}~ ü漢😀",
    "text": "line\nbreak\ttab\x1b[31m $a$b^c$ \udc80\\",
    "dash": "-x",
}


@pytest.fixture(params=NAMES)
def odd(request, tmp_path, monkeypatch) -> Path:
    """A folder of such a name, which is relative to the one we are in."""
    monkeypatch.chdir(tmp_path)
    folder = Path(NAMES[request.param])
    folder.mkdir()
    return folder


def test_a_run_in_a_folder_of_any_name(odd):
    """Only data files need a name that is Unicode: it is a string of the job."""
    data, job = saved((odd if odd.name.isprintable() else Path()) / "data.npz"), odd / "my job.toml"
    job.write_text("rounds = 1\n")
    start = [] if str(job).startswith("-") else [str(job)]
    assert run(*start, *TINY, f"--out={odd / 'run'}", f"--data.name={data}").status == 0
    for words in (["summary"], ["summary", "--json"], ["cite"], ["digest"]):
        assert command(*words, "--", str(odd / "run")).status == 0, words
    assert (
        command(
            "plot", f"--out={odd / 'both.png'}", "--", str(odd / "run"), str(odd / "run")
        ).status
        == 0
    )
    assert run(f"--resume={odd / 'run'}", "--rounds=2", "--quiet").status == 0
    assert set(os.listdir()) <= {odd.name, "data.npz"}


def test_a_name_that_no_encoding_has_is_printed_as_escapes(tmp_path):
    """On a terminal without Unicode, of a folder whose name is not Unicode either."""
    folder = tmp_path / "\udc80ü"
    code = f"""
import sys
from hpcfed import cli, main
sys.stdout.reconfigure(encoding="ascii")
words = [*{TINY[:-1]}, "--log.picture", "true", "--out", sys.argv[1]]
sys.exit(main.main(words) or cli.main(["summary", sys.argv[1]]))
"""
    done = subprocess.run(
        [forked.python(), "-c", code, str(folder)],
        capture_output=True,
        env=environment({"LC_ALL": "C"}),
        timeout=limits.COMMAND,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (
        done.stdout.count(rb"\udc80\xfc") == 4
    )  # where results go, where they are, the picture, the summary


@pytest.mark.parametrize("out", ["x" * 300, "file/run", "file"], ids=lambda out: out[:8])
def test_a_folder_that_cannot_be_is_refused(tmp_path, out):
    (tmp_path / "file").touch()
    refused(run(*TINY, "--out", str(tmp_path / out)), "out: cannot make the folder")


def test_a_folder_in_thousands_of_others_is_refused(tmp_path):
    out = str(tmp_path / ("x/" * 3000 + "x"))
    refused(run(*TINY, "--out", out), "out: a path has at most 200 parts")


NO_DATA = ["x" * 300 + ".h5", "x/" * 150 + "x.npz", "file/x.npz", ".h5", "/", "."]


@pytest.mark.parametrize("name", NO_DATA, ids=lambda name: name[:8])
def test_a_data_file_that_cannot_be_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    where = [f"--data.name={name}", f"--data.root={tmp_path}", f"--out={tmp_path / 'run'}"]
    refused(run(*TINY, *where), name[:8])
    refused(run(*TINY, *where[1:], f"--data.partition_file={tmp_path / name}"), name[:8])
    refused(command("summary", name), name[:8])
    refused(run("--resume", name), name[:8])
    refused(
        run(
            *TINY,
            where[2],
            "--data.name=mnist",
            "--no-data.download",
            f"--data.root={tmp_path / name}",
        ),
        "mnist",
    )


def test_a_run_keeps_its_files_to_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*TINY, "--log.picture", "true", "--out", "run").status == 0
    assert sorted(os.listdir("run")) == ["checkpoints", "curves.png", "partition.h5", "results.h5"]
