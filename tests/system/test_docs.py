"""The documentation: its examples run, its commands are valid, and a missing page fails the build.

`docs/test_site.py` examines the built pages.
"""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import hpcfed
from hpcfed import cli
from hpcfed.config.load import load
from hpcfed.main import main
from hpcfed.storage import results
from hpcfed.storage.digest import digest
from hpcfed.tasks import METRICS
from tests import forked, limits
from tests.mpirun import ROOT, environment
from tests.system.test_readme import SMALL_MACHINE

DOCS = ROOT / "docs"
WRITTEN = sorted((DOCS / "pages").rglob("*.md"))
OWN = [*sorted((DOCS / "pages/extend").glob("*.md")), DOCS / "pages/apply.md"]
BLOCK = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
FEW = ["--data.train_limit", "120"]  # examples, for the tests' sake


def lines(page: Path, *languages: str) -> list[str]:
    """All commands of a page."""
    blocks = BLOCK.findall(page.read_text())
    return [
        line
        for language, _, text in blocks
        if language in languages
        for line in text.splitlines()
        if line
    ]


def test_a_link_to_a_missing_page_anchor_or_picture_fails_the_build(tmp_path):
    (tmp_path / "pages").mkdir()
    text = (DOCS / "zensical.toml").read_text()
    validation = text[text.index("[project.validation]") :]
    config = '[project]\nsite_name = "x"\ndocs_dir = "pages"\nsite_dir = "docs"\n' + validation
    (tmp_path / "zensical.toml").write_text(config)
    build = [sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.toml"]
    check = [sys.executable, DOCS / "links.py", "docs"]

    def status(page: str, *commands: list[str]) -> list[int]:
        (tmp_path / "pages/index.md").write_text(f"# Page\n\n{page}\n")
        return [
            subprocess.run(c, cwd=tmp_path, capture_output=True, timeout=limits.COMMAND).returncode
            for c in commands
        ]

    assert status("[a](#page)", build, check) == [0, 0]
    assert status("[a](missing.md)", build) == status("[a](#missing)", build) == [1]
    for page in ("![a](missing.png)", '<a href="missing.html">a</a>'):
        assert status(page, build, check) == [0, 1]


@pytest.mark.parametrize("page", OWN, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for _, title, text in BLOCK.findall(page.read_text()):
        if title:
            (tmp_path / title).write_text(text)
    for command in lines(page, "sh"):
        digits = re.search(r"hpcfed(\.main| run)\b", command) and not {
            "--data.name",
            "--resume",
        } & set(command.split())
        clients = [] if "--clients" in command else ["--clients", "4"]
        call(shlex.split(command) + (FEW + clients if digits else []))
    named = (DOCS / "pages/results.md").read_text()
    metric = re.compile("/(" + "|".join(METRICS.keys() - {"accuracy"}) + ")")
    columns = {
        metric.sub("/NAME", name)
        for run in tmp_path.glob("runs/*")
        for name in results.load(run).columns
    }
    assert {name for name in columns if f"`{name}`" not in named} == set()


def test_the_method_of_the_tutorial_is_lg_fedavg_if_keep_is_zero(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    blocks = BLOCK.findall((DOCS / "pages/tutorial.md").read_text())
    [(name, text)] = [(title, text) for _, title, text in blocks if title]
    (tmp_path / name).write_text(text)
    flags = ["--algorithm.name", "headmix:HeadMix", "--algorithm.keep"]
    methods = {
        "lg": ["--algorithm.name", "lgfedavg"],
        "zero": [*flags, "0"],
        "half": [*flags, "0.5"],
    }
    for folder, method in methods.items():
        short = ["--models.mix", "mlp", "--clients", "2", "--rounds", "2", "--out", folder]
        assert main([*method, *short, *FEW, "--quiet"]) == 0
    lg, zero, half = (digest(Path(folder)) for folder in methods)
    assert lg == zero != half


def test_the_examples_of_the_page_from_python_run_and_it_has_every_public_name(
    tmp_path, monkeypatch
):
    text = (DOCS / "pages/python.md").read_text()
    public = set(re.findall(r"`(\w+)`", text.partition("## All public names")[2]))
    assert public - {"dir"} == set(hpcfed.__all__)
    monkeypatch.chdir(tmp_path)
    for name, value in environment(SMALL_MACHINE).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", forked.python())  # of the ranks that a call starts
    blocks = BLOCK.findall(text)
    [(name, job)] = [(title, body) for _, title, body in blocks if title]
    (tmp_path / name).write_text(job.replace("train_limit = 400", "train_limit = 100"))
    script = "\n".join(body for language, title, body in blocks if language == "python")
    (tmp_path / "script.py").write_text(script)
    names = runpy.run_path("script.py")
    assert (len(names["run"]), len(names["own"]), names["two"].header["ranks"]) == (4, 2, 2)
    assert names["natural"].label_counts.sum() == 480


def call(words: list[str]) -> None:
    """A command of a page in this process, for each of its own would import torch anew; on one
    rank, as bits are.
    """
    match words[3:] if words[0] == "mpirun" else words:
        case ["python", "-m", "hpcfed.main", *flags] | ["hpcfed", "run", *flags]:
            assert main(flags) == 0
        case ["python", script]:
            runpy.run_path(script)
        case ["hpcfed", *rest]:
            assert cli.main(rest) == 0
        case _:
            pytest.fail(f"no test runs {shlex.join(words)}")


@pytest.mark.parametrize(
    "page", [page for page in WRITTEN if page not in OWN], ids=lambda page: page.stem
)
def test_the_commands_of_a_page_are_valid(page, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(tmp_path)
    for _, title, text in BLOCK.findall(page.read_text()):
        if title:
            (tmp_path / title).write_text(text)
    for line in lines(page, "sh", "bash"):
        words = shlex.split(line)
        if words[0] == "hpcfed":
            cli._options(words[1:])
        elif "hpcfed.main" in words:
            # a run that is not there
            resumed = words.index("--resume") if "--resume" in words else len(words)
            load(
                [*words[words.index("hpcfed.main") + 1 : resumed], *words[resumed + 2 :]],
                environ={},
            )


def test_the_job_file_of_the_quick_start_is_a_valid_job(tmp_path):
    (toml,) = (
        text
        for language, _, text in BLOCK.findall((DOCS / "pages/start.md").read_text())
        if language == "toml"
    )
    (tmp_path / "job.toml").write_text(toml)
    assert load([str(tmp_path / "job.toml")], environ={}).algorithm.name == "fedproto"
