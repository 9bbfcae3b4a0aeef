"""Changed code of users' methods and models: when a digest changes, and what then happens."""

import linecache
import sys
from functools import partial
from importlib import invalidate_caches
from itertools import count
from pathlib import Path
from shlex import split
from types import ModuleType

import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.cli import main as command
from hpcfed.core import code_digest
from hpcfed.core.code_digest import digest
from hpcfed.core.errors import ConfigError
from hpcfed.core.user_code import load
from hpcfed.main import main
from hpcfed.report.table import table

NUMBER = count()
HELPER = "def scale(x):\n    return 2 * x\n"
MINE = """
import HELPER
from hpcfed.algorithms.base import RoundBased

MU = 0.1


def term(x):
    return MU * HELPER.scale(x)


def unused(x):
    return x


class Mine(RoundBased):
    '''Mine.'''

    def loss(self, client, state, model, x, y):
        return super().loss(client, state, model, x, y) + term(0.0)
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Write a method and its helper, each time under new names; return the digest of the method."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str = MINE, helper: str = HELPER) -> str:
        mine, other = (f"code_{next(NUMBER)}_{name}" for name in ("mine", "helper"))
        (tmp_path / f"{other}.py").write_text(helper)
        (tmp_path / f"{mine}.py").write_text(text.replace("HELPER", other))
        invalidate_caches()
        cls = load("algorithm.name", f"{mine}:Mine", "module:Class")
        return normalised(cls, mine, other)

    return make


def normalised(thing, mine: str, other: str) -> str:
    """The digest of a class in modules whose names say nothing."""
    parts: dict[str, str] = {}
    code_digest.add(thing, parts)
    parts_text = repr(sorted(parts.items()))
    return parts_text.replace(mine, "own").replace(other, "other")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (("MU = 0.1", "MU = 100"), False),
        (("MU * HELPER", "-MU * HELPER"), False),
        (("+ term", "- term"), False),
        (("'''Mine.'''", "'''Yours.'''  # a comment"), True),
        (("    return x\n", "    return -x\n"), True),  # nothing names that function
    ],
)
def test_a_digest_covers_a_class_and_all_that_it_names(code, change, same):
    assert (code(MINE.replace(*change)) == code()) == same


def test_a_digest_covers_the_users_modules_and_what_partial_binds(code):
    assert code(helper=HELPER.replace("2", "3")) != code()
    assert code(helper=HELPER + "# a comment\n") == code()
    assert digest(partial(code, 1)) != digest(partial(code, 2))


CELL = """
from functools import cached_property
from typing import ClassVar

import hpcfed

FACTOR = 2


class Base(hpcfed.RoundBased):
    a: float = 0.1


class Mine(Base):
    '''Mine.'''

    b: float = 0.1
    c: ClassVar[tuple] = (1, 2)
    d: ClassVar[dict] = {"x": [1]}

    @property
    def e(self):
        return 5

    @cached_property
    def f(self):
        return 6 * FACTOR

    @staticmethod
    def g():
        return 7


class Empty(hpcfed.RoundBased):
    h: float = 0.1
"""
CELL_CHANGES = {
    "a default": ("b: float = 0.1", "b: float = 0.9"),
    "a default of a base class": ("a: float = 0.1", "a: float = 0.9"),
    "a tuple": ("(1, 2)", "(1, 3)"),
    "a nested container": ("[1]", "[2]"),
    "a property": ("return 5", "return 50"),
    "a cached property": ("return 6", "return 60"),
    "a static method": ("return 7", "return 70"),
    "a default of a class without functions": ("h: float = 0.1", "h: float = 0.9"),
}


@pytest.fixture
def cell(monkeypatch):
    """Run a notebook's cell, whose module has no file, and return it."""

    def execute(text: str, readable: bool = True) -> ModuleType:
        notebook, name = ModuleType("__main__"), f"/ipykernel_1/{next(NUMBER)}.py"
        if readable:
            lines = text.splitlines(keepends=True)
            monkeypatch.setitem(linecache.cache, name, (len(text), None, lines, name))
        monkeypatch.setitem(sys.modules, "__main__", notebook)
        exec(compile(text, name, "exec"), vars(notebook))
        return notebook

    return execute


@pytest.mark.parametrize("readable", [True, False])
def test_a_digest_of_a_class_of_a_notebook_covers_all_of_the_class(cell, readable):
    def digests(text: str) -> list[str]:
        notebook = cell(text, readable)
        return [digest(notebook.Mine), digest(notebook.Empty)]

    before = digests(CELL)
    assert digests(CELL.replace("'''Mine.'''", "'''Yours.'''  # a comment")) == before
    missed = [name for name, one in CELL_CHANGES.items() if digests(CELL.replace(*one)) == before]
    assert missed == []
    if readable:
        assert digests(CELL.replace("FACTOR = 2", "FACTOR = 3")) != before


PLAIN = MINE.replace("import HELPER\n", "").replace("HELPER.scale", "")
SMALL = split("--clients 2 --data.train_limit 60 --rounds 1 --models.d 8 --models.mix mlp --quiet")


@pytest.fixture
def again(tmp_path, monkeypatch):
    """Write a method's file, each time under the same name; return "module:Mine"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"code_{next(NUMBER)}_again"

    def write(text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        invalidate_caches()
        linecache.clearcache()
        return f"{name}:Mine"

    return write


def test_changed_code_is_refused_on_resume_unless_the_job_accepts_it(again, capsys):
    def go_on(text: str, rounds: int, **more) -> hpcfed.Run:
        job = {"models.mix": ["mlp"], "data.train_limit": 60, "models.d": 8, "quiet": True}
        method = again(text)
        return hpcfed.run(
            job, algorithm=method, clients=2, rounds=rounds, out="r", resume=True, **more
        )

    changed = PLAIN.replace("0.1", "100")
    assert len(go_on(PLAIN, 1)) == 1
    assert len(go_on(PLAIN + "# a comment\n", 2)) == 2
    for rounds in (2, 3):
        with pytest.raises(ConfigError, match="the code of .*:Mine has changed since"):
            go_on(changed, rounds)
    assert len(go_on(changed, 3, own_changed=True)) == 3
    assert len(go_on(changed, 4)) == 4
    assert "the code of" in table([Path("r")])
    with pytest.raises(ConfigError, match="rounds = 3, but .* has done 4"):
        go_on(changed, 3)
    assert hpcfed.load("r").job["rounds"] == 4


def test_a_sweep_notices_the_code_of_finished_runs(again, capsys):
    words = [*SMALL, "--algorithm.name", again(PLAIN)]
    sweep = ["sweep", *words, "--out", "s", "--seed", "0,1", "--dry-run"]
    assert command(sweep) == 0
    name = next(word for word in capsys.readouterr().out.split() if "seed" in word)
    assert main([*words, "--out", f"s/{name}"]) == 0
    assert command(sweep) == 0
    assert "finished" in capsys.readouterr().out
    # of another length: Python knows a changed file by its second and its size
    again(PLAIN.replace("0.1", "100.0"))
    assert command(sweep) == 2
    assert ":Mine has changed" in capsys.readouterr().err


def test_code_that_names_functools_partial_has_a_digest(code):
    text = "from functools import partial\n" + MINE.replace("term(0.0)", "partial(term, 0.0)()")
    assert code(text) != code()


NET = """
import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, in_features, num_classes):
        super().__init__()
        self.last = nn.Linear(in_features, num_classes)

    def forward(self, x):
        return self.last(torch.relu(x.flatten(1) - 0.5))
"""


def test_a_trained_model_is_not_built_from_changed_code_unless_that_is_accepted(again, capsys):
    name = again(NET)
    job = {"data.train_limit": 60, "quiet": True, "models.mix": [name]}
    hpcfed.run(job, algorithm="fedavg", clients=2, rounds=1, out="r")
    assert command(["models", "r", "--own", name, "--common"]) == 0
    x = torch.linspace(0, 1, 256).view(1, 1, 16, 16)
    scores = hpcfed.load_model("r", own=[name])(x)
    again(NET + "# a comment\n")
    sources = ("r", "r/models/common.safetensors")
    for source in sources:
        assert torch.equal(hpcfed.load_model(source, own=[name])(x), scores)
    again(NET.replace("torch.relu", "torch.sin"))
    for source in sources:
        with pytest.raises(ConfigError, match=f"{source}: the code of {name} has changed since"):
            hpcfed.load_model(source, own=[name])
        model = hpcfed.load_model(source, own=[name], own_changed=True)
        assert not torch.equal(model(x), scores)
    np.savez("x.npz", x=x.numpy())
    np.savez("site.npz", x=x.expand(20, -1, -1, -1).numpy(), y=np.arange(20) % 2)
    words = ["r", "--own", name]
    site = ["adapt", *words, "--data", "site.npz"]
    for arguments in (["predict", "r", "x.npz", *words[1:]], ["models", *words], site):
        assert command(arguments) == 2
        assert f"the code of {name} has changed" in capsys.readouterr().err
    for arguments in (["predict", "r", "x.npz", *words[1:]], site):
        assert command([*arguments, "--own-changed"]) == 0
    # an accepted change is that of the exported file too
    assert command(["models", *words, "--own-changed", "--common"]) == 0
    for file in (sources[1], "site.safetensors"):
        assert not torch.equal(hpcfed.load_model(file, own=[name])(x), scores)


def test_figures_of_models_import_no_code_and_are_drawn_from_the_probe_that_does(again, capsys):
    name = again(NET)
    job = {"data.train_limit": 60, "quiet": True, "models.mix": [name]}
    hpcfed.run(job, algorithm="fedavg", clients=2, rounds=1, out="r")
    plot = ["plot", "r", "--figure", "cka"]
    assert command(plot) == 2
    message = capsys.readouterr().err
    assert message.startswith("hpcfed: cka: the job stored in r names ")
    assert "`hpcfed probe`, from whose file figures are drawn" in message
    again(NET.replace("torch.relu", "torch.sin"))
    assert command(["probe", "r", "--own", name]) == 2
    assert f"the code of {name} has changed" in capsys.readouterr().err
    assert command(["probe", "r", "--own", name, "--own-changed"]) == 0
    assert command(plot) == 0
