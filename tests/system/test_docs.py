"""The documentation: it builds without a warning, needs no network, has all there is, and its examples run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.cli import _options
from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.storage import results
from tests.mpirun import ROOT
from tests.system.test_readme import shell

DOCS = ROOT / "docs"
WRITTEN = sorted((DOCS / "pages").rglob("*.md"))
OWN = sorted((DOCS / "pages/extend").glob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
FETCHED = re.compile(r"<(?:script|img|iframe|source)[^>]* src=[\"']?(?:https?:)?//"
                     r"|<link[^>]* rel=[\"']?(?:stylesheet|preload|preconnect|icon)[^>]* href=[\"']?(?:https?:)?//"
                     r"|url\([\"']?(?:https?:)?//|@import")  # fmt: skip


def lines(page: Path, *languages: str) -> list[str]:
    """All commands of a page."""
    found = BLOCK.findall(page.read_text())
    return [line for language, _, text in found if language in languages for line in text.splitlines() if line]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built pages."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", DOCS / "mkdocs.yml", "-d", folder]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return folder


def test_every_algorithm_has_a_page_and_every_field_its_place(site):
    assert {path.stem for path in (site / "algorithms").glob("*.html")} == {*ALGORITHMS, "index"}
    fields = [f"{n}-{f}" for n, part in Job.model_fields.items() for f in getattr(part.annotation, "model_fields", ())]
    text = (site / "reference/job.html").read_text()
    assert [name for name in (*fields, "rounds", "seed") if f'id="{name}"' not in text] == []


def test_the_pages_fetch_nothing_from_anywhere(site):
    texts = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(texts) > len(ALGORITHMS)
    assert {path.name: found for path in texts if (found := FETCHED.findall(path.read_text()))} == {}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", OWN, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page, tmp_path):
    for _, title, text in BLOCK.findall(page.read_text()):
        if title:
            (tmp_path / title).write_text(text)
    for command in lines(page, "sh"):
        done = shell(command, tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    named = (ROOT / "docs/pages/results.md").read_text()
    columns = {name for run in tmp_path.glob("runs/*") for name in results.load(run).columns}
    assert {name for name in columns if f"`{name}`" not in named} == set()


@pytest.mark.parametrize("page", [page for page in WRITTEN if page not in OWN], ids=lambda page: page.stem)
def test_the_commands_of_a_page_are_valid(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for line in lines(page, "sh", "bash"):
        words = shlex.split(line)
        if words[0] == "hpcfed":
            _options(words[1:])
        else:
            flags = words[words.index("hpcfed.main") + 1 :]
            load([word for word in flags if word not in ("--resume", "runs/first")], environ={})


def test_the_job_file_of_the_quick_start_is_a_valid_job(tmp_path):
    (toml,) = (text for language, _, text in BLOCK.findall((DOCS / "pages/start.md").read_text()) if language == "toml")
    (tmp_path / "job.toml").write_text(toml)
    assert load([str(tmp_path / "job.toml")], environ={}).algorithm.name == "fedproto"
