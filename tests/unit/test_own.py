"""A user's own files: what works, and that each mistake is one message with its place."""

import re
import shlex
import subprocess
import sys
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from textwrap import dedent, indent

import pytest
import torch
from torch import nn

import hpcfed
from hpcfed.config.help import help
from hpcfed.config.job import algorithm_model
from hpcfed.config.load import load
from hpcfed.config.words import CommandLine
from hpcfed.core import rng, user_code
from hpcfed.core.errors import ConfigError
from hpcfed.core.exit_status import RESUME_ME
from hpcfed.engine import decide
from hpcfed.main import main
from hpcfed.models import build, represents, untrained
from hpcfed.models.flat import Layout
from hpcfed.models.user_model import describe_call
from hpcfed.storage import names, results
from hpcfed.storage.digest import digest
from tests import forked, limits
from tests.mpirun import environment

NUMBER = count()
HEAD = """
from collections.abc import Callable
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, ClassVar
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, field_validator, model_validator
from torch import nn
from hpcfed.algorithms.base import RoundBased
from hpcfed.core.params import Mean, Params
from hpcfed.federation.upload import Upload
from hpcfed.training.local import sgd
"""
CLASS = HEAD + "\n\nclass Mine(RoundBased):\n    '''Mine.'''\n\n"
LOSS = "def loss(self, client, state, model, x, y):\n    "
LOCAL = "def local(self, fed, client, state, t):\n    "
SMALL = shlex.split("--clients 3 --data.train_limit 60 --rounds 1 --models.d 16 --quiet")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a file; returns the name of its module, which no other test has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        name = f"own_file_{next(NUMBER)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def method(body: str) -> str:
    """A file with a method of this body."""
    return CLASS + indent(dedent(body), "    ") + "\n"


def line(text: str, words: str) -> int:
    return next(i for i, row in enumerate(text.splitlines(), start=1) if words in row)


# By name: what stands in the class, the line that is at fault, and what the message must hold.
CLASSES = {
    "misspelt": (
        "def locall(self):\n    pass",
        "def locall",
        "nothing calls it; did you mean local?",
    ),
    "of another framework": (
        "def criterion(self, x):\n    pass",
        "def crit",
        "is not a hook of RoundBased, and nothing calls it",
    ),
    "a validator that does not take the default": (
        "sizes: tuple = (3, 3)\n@field_validator('sizes', mode='before')\n"
        "def split(cls, value):\n    return value.split('x')",
        "return value.split",
        "has no attribute 'split'; validators get the defaults of fields too",
    ),
    "no type": ("lam = 0.1", "class Mine", "`lam = 0.1`. All model fields require a type"),
    "no field": ("lam: torch.Tensor = None", "class Mine", "torch.Tensor, which a job cannot hold"),
    "default": (
        "mu: int = 0.1",
        "class Mine",
        "the field mu is int, but its default is 0.1: input should be a valid integer, got a "
        "number with a fractional part; write another default, or another type: `mu: float = 0.1`",
    ),
    "default none": ("mu: float = None", "class Mine", "another type: `mu: float | None = None`"),
    "default range": (
        "mu: NonNegativeFloat = -1.0",
        "class Mine",
        "its default is -1.0: input should be greater than or equal to 0; write another default",
    ),
    "default beside one that must be given": (
        "lam: float\nmu: float = 'a'",
        "class Mine",
        "the field mu is float, but its default is 'a'",
    ),
    "function": (
        "act: Callable = torch.relu",
        "class Mine",
        "which a job cannot hold; a field is a number, a text, true or false, or a tuple of these; "
        "write `act: str = 'relu'`",
    ),
    "function of a factory": (
        "act: Any = Field(default_factory=lambda: torch.relu)",
        "class Mine",
        "the field act has the default <built-in method relu",
    ),
    "not imported": (
        "lam: 'NonNegative' = 0.1",
        "class Mine",
        "NonNegative, which is not imported",
    ),
    "init": ("def __init__(self):\n    self.mu = 1", "def __init__", "`mu: float = 0.1`"),
    "needs": (
        "needs: ClassVar = 'public'",
        "class Mine",
        "is no tuple; write `needs: ClassVar = ('public',)`",
    ),
    "signature": (
        "def loss(self, model, x, y):\n    pass",
        "def loss",
        "write `def loss(self, client, state, model, x, y):`",
    ),
    "order": (
        "def server(self, fed, mean, state, cohort):\n    return mean",
        "def server",
        "takes (self, fed, mean, state, cohort), but is called with (fed, state, mean, cohort)",
    ),
    "no further settings of training": (
        "def train(self, fed, client, received, t):\n    return 0",
        "def train",
        "is called with (fed, client, received, t, **how); write "
        "`def train(self, fed, client, received, t, **how):`",
    ),
    "further settings of training by position": (
        "def train(self, fed, client, received, t, how):\n    return 0",
        "def train",
        "write `def train(self, fed, client, received, t, **how):`",
    ),
    "accepts": ("accepts: ClassVar[str] = 'any model'", "class Mine", "did you mean 'any models'?"),
    "no ClassVar": ("accepts: str = 'any models'", "class Mine", "`accepts: ClassVar = ...`"),
    "a field named as a hook": ("local: int = 3", "class Mine", "the name of a hook"),
    "no property": ("def views(self):\n    return 2", "def views", "put @property above it"),
}


def test_a_class_with_only_fields_belongs_to_its_own_file():
    class Mine(hpcfed.RoundBased):
        """What pydantic adds to it has another file."""

        lam: float = 0.1

    assert user_code.file_of(Mine) == __file__


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_that_cannot_be_a_method_is_refused_with_its_line(module, case):
    body, at, words = CLASSES[case]
    text = method(body)
    name = module(text)
    with pytest.raises(ConfigError) as refusal:
        algorithm_model(f"{name}:Mine")
    message = str(refusal.value)
    assert message.startswith(f"algorithm.name = '{name}:Mine': {name}.py, line {line(text, at)}")
    assert words in message


def test_helpers_validators_private_names_and_hooks_that_the_class_calls_itself_are_no_mistakes(
    module,
):
    body = """
    mu: float = 0.1

    @field_validator("mu")
    @classmethod
    def small(cls, value):
        return value

    def local(self, fed, client, state, t):
        self.receive(client, fed.down(client, state))
        sgd(fed, client, t, partial(self.loss, client, state, []))
        return self.packed(client)

    def packed(self, client):
        return Upload(Mean.of(client.params(), self.weight(client)))

    def loss(self, client, state, seen, model, x, y):
        return F.cross_entropy(model(x), y)

    def _unused(self):
        pass
    """
    assert algorithm_model(f"{module(method(body))}:Mine")().mu == 0.1


def test_defaults_may_be_computed_depend_on_other_fields_and_need_a_choice(module):
    body = """
    mu: float = 1
    steps: int | None = None
    betas: tuple[float, ...] = [0.9, 0.99]
    sizes: list[int] = []
    half: float = Field(default_factory=lambda data: data["mu"] / 2)
    a: float = 0.0
    b: float = 0.0

    @model_validator(mode="after")
    def chosen(self):
        if self.a + self.b == 0:
            raise ValueError("give a or b")
        return self
    """
    name = f"{module(method(body))}:Mine"
    words = ["--algorithm.name", name, "--models.mix", "mlp"]
    with pytest.raises(ConfigError, match="^algorithm: give a or b$"):
        load(words)
    job = load([*words, "--algorithm.a", "1", "--algorithm.mu", "3"])
    assert job.algorithm.half == 1.5 and job.algorithm.betas == (0.9, 0.99)
    assert "follows from other fields" in help(
        CommandLine.parse([*words, "--algorithm.a", "1", "--help", "algorithm.half"])
    )


def test_a_function_as_a_value_of_a_field_is_one_message_in_python_too(module):
    name = module(method("act: Any = None"))
    mine = import_module(name).Mine
    refusal = (
        "^hpcfed.run: algorithm.act = .*relu.*, which a job cannot hold; .*`act: str = 'relu'`"
    )
    for algorithm in (mine(act=torch.relu), {"name": mine, "act": torch.relu}):
        with pytest.raises(ConfigError, match=refusal):
            hpcfed.run(algorithm=algorithm, models={"mix": ["mlp"]})


# By name: a file, or None for the name alone; the name; what the message must hold.
FILES = {
    "raises": ("\n1 / 0", "{}:Mine", "{}.py, line 2: ZeroDivisionError: division by zero"),
    "syntax": ("def f(:", "{}:Mine", "{}.py, line 1: invalid syntax"),
    "import": ("import nonesuch", "{}:Mine", "{}.py, line 1: No module named 'nonesuch'"),
    "exit": ("import sys\nsys.exit(0)", "{}:Mine", "{}.py, line 2: ends Python"),
    "name": (CLASS, "{}:Mien", "{}.py has no 'Mien'; did you mean {}:Mine?"),
    "file": (CLASS, "{}s:Mine", "there is no {}s.py in "),
    "near": (CLASS, "{}s:Mine", "did you mean {}.py?"),
    "form": (CLASS, "..a:x", "is not a name of the form module:Class"),
    "file name": (CLASS, "{}.py:Mine", "is not a name of the form module:Class; write {}:Mine"),
    "path": (CLASS, "./sub/{}.py:Mine", "of the form module:Class; write sub.{}:Mine"),
    "empty": (CLASS, "{}:", "is not a name of the form module:Class"),
    "library": (CLASS, "os:system", "os is a module of Python's standard library"),
    "function": ("def Mine():\n    pass", "{}:Mine", "{}.py, line 1: Mine is not an algorithm"),
    "base": ("class Mine:\n    pass", "{}:Mine", "write `class Mine(RoundBased):`"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_imported_is_one_message(module, case):
    text, name, words = FILES[case]
    file = module(text)
    with pytest.raises(ConfigError) as refusal:
        algorithm_model(name.format(file))
    assert words.replace("{}", file) in str(refusal.value)


# By name: a hook, and what the message must hold after the hook's line.
HOOKS = {
    "init": ("def init(self, fed):\n    fed.start_alike()", "Mine.init returns None"),
    "server": (
        "def server(self, fed, state, mean, cohort):\n    mean * 2",
        "Mine.server returns None",
    ),
    "round": (
        "def round(self, fed, state, cohort, t):\n    super().round(fed, state, cohort, t)",
        "Mine.round returns None",
    ),
    "local": (LOCAL + "super().local(fed, client, state, t)", "Mine.local returns None"),
    "names": (
        LOCAL + "return Upload(Mean.of(Params(a=torch.zeros(1))))",
        "it holds 'a' of shape [1], but the server's state of shape None",
    ),
    "shapes": (
        LOCAL + "return Upload(Mean.of(Params(client.params(), **{'head.bias': torch.zeros(3)})))",
        "it holds 'head.bias' of shape [3], but the server's state of shape [10]",
    ),
    "too few": (
        LOCAL + "return Upload(Mean.of(Params({'head.bias': torch.zeros(10)})))",
        "of the server's state; send all of its tensors, or declare `per: ClassVar = 'tensor'`",
    ),
    "shared": ("def shared(self, name):\n    name == 'a'", "Mine.shared returns None"),
    "cohort": ("def cohort(self, fed, t):\n    return [7]", "ids of clients, 0 to 1"),
    "predictor": (
        "def predictor(self, fed, client, state):\n    return lambda x: client.model(x).argmax(1)",
        "predictor gives a function that returns a tensor of shape [8]; return a row of outputs",
    ),
    "no predictor": (
        "def predictor(self, fed, client, state):\n    client.model",
        "Mine.predictor returns None (is a `return` missing?); return a function of inputs x",
    ),
    "no reasons": (
        "def refuses(self, job):\n    return None",
        "Mine.refuses returns None (is a `return` missing?); return reasons by field",
    ),
    "finish": ("def finish(self, fed, state, t):\n    return stat", "NameError: name 'stat'"),
    "assigned": (LOCAL + "self.last = t", "client.memory['last']"),
    "vector": (LOSS + "return F.cross_entropy(model(x), y, reduction='none')", "of shape [4]"),
    "no loss": (LOSS + "F.cross_entropy(model(x), y)", "Mine.loss returns None"),
    "number": (LOSS + "return 1.0", "Mine.loss returns 1.0; return a scalar tensor"),
    "constant": (LOSS + "return F.cross_entropy(model(x).detach(), y)", "it has no gradient"),
    "a dict": (
        "def server(self, fed, state, mean, cohort):\n    return dict(mean)",
        "Mine.server returns a dict; return the state as `Params(...)` of this dict",
    ),
    "less": (
        "def server(self, fed, state, mean, cohort):\n"
        "    return Params({'head.bias': mean['head.bias']})",
        "it does not hold 'body.",
    ),
    "arrays": (
        LOCAL + "return Upload(Mean.of({'head.bias': client.model.head.bias.detach().numpy()}))",
        "its 'head.bias' is a ndarray; send tensors",
    ),
    "other names": (
        "def init(self, fed):\n    return Params(a=torch.zeros(3))",
        "it holds 'a' of shape [3], but a client's model has one of shape None",
    ),
    "other shapes": (
        "def server(self, fed, state, mean, cohort):\n    return mean.map(lambda v: v.flatten())",
        "but the state before has one of shape [",
    ),
    "loads other names": (
        LOCAL + "client.load({'head.bia': torch.zeros(10)})",
        "a model is to load 'head.bia' of shape [10], but has one of shape None",
    ),
    "received in place": (
        LOCAL + "state['head.bias'].mul_(0.9)\n    return super().local(fed, client, state, t)",
        "Mine.local changes 'head.bias' of the server's state in place",
    ),
    "received in place in the loss": (
        LOSS + "state['head.bias'] += 1.0\n    return F.cross_entropy(model(x), y)",
        "Mine.loss changes 'head.bias' of the server's state in place",
    ),
    "state in place": (
        "def server(self, fed, state, mean, cohort):\n"
        "    state['head.bias'] += mean['head.bias']\n    return state",
        "Mine.server changes 'head.bias' of the server's state in place",
    ),
    "not received": (
        LOCAL + "self.train(fed, client, state, t)\n"
        "    return Upload(Mean.of(client.params(), self.weight(client)))",
        "Mine.local uses a client's model before its 'body.",
    ),
    "half": (LOSS + "return F.cross_entropy(model.half()(x.half()), y)", "torch.float16 now"),
    "backward": (
        LOSS + "value = F.cross_entropy(model(x), y)\n    value.backward()\n    return value",
        "Mine.loss returns a value that was differentiated before; return the loss without calling",
    ),
    "optimiser": (
        LOCAL
        + "client.memory['opt'] = [torch.optim.SGD(client.model.parameters())]\n"
        + "    return super().local(fed, client, state, t)",
        "Mine: client.memory['opt'][0]: cannot save a SGD; use dict, list, tuple, Params, tensor, "
        "array, number, str, bool or None, such as its state_dict()",
    ),
    "key": (
        LOCAL
        + "client.memory['sums'] = {(0, 1): 2.0}\n"
        + "    return super().local(fed, client, state, t)",
        "client.memory['sums']: cannot save a dict with the key (0, 1); use str or int keys",
    ),
    "matrices": (LOSS + "return (model(x) @ torch.zeros(3, 4)).sum()", "cannot be multiplied"),
}


@pytest.mark.parametrize("case", HOOKS)
def test_an_unusable_return_value_of_a_hook_is_reported_before_training(module, case, capsys):
    body, words = HOOKS[case]
    name = module(method(body))
    assert main([*SMALL, "--algorithm.name", f"{name}:Mine", "--models.mix", "mlp"]) == 2
    err = capsys.readouterr().err
    assert re.match(rf"hpcfed: {name}\.py, line \d+", err) and words in err
    assert err.count("hpcfed: ") == 1 and "Traceback" not in err


@pytest.mark.parametrize("case", ["server", "local"])
def test_a_hook_is_checked_in_the_run_too(module, case, capsys, monkeypatch):
    """With one round, after which nobody would use what `server` returns."""
    monkeypatch.setattr(decide, "rehearse", lambda *_: [])
    body, words = HOOKS[case]
    name = module(method(body))
    words_ = [*SMALL, "--algorithm.name", f"{name}:Mine", "--models.mix", "mlp"]
    with pytest.raises(SystemExit, match="2"):
        main(words_)
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err


def test_an_exception_of_the_users_arithmetic_shows_the_users_lines_alone(module, capsys):
    """ValueError: of a small world it might be the fault, so that it shows in the run."""
    body = "def weight(self, client):\n    return self.share(client)\n"
    body += "def share(self, client):\n    raise ValueError('no share')"
    text = method(body)
    name = module(text)
    with pytest.raises(SystemExit, match="2"):
        main([*SMALL, "--algorithm.name", f"{name}:Mine", "--models.mix", "mlp"])
    err = capsys.readouterr().err
    first, second = line(text, "return self.share"), line(text, "raise ValueError")
    assert err.splitlines()[-7:] == [
        f"hpcfed: {name}.py, line {second}, in share: ValueError: no share",
        "  in your files:",
        f"    {name}.py, line {first}, in weight",
        "      return self.share(client)",
        f"    {name}.py, line {second}, in share",
        "      raise ValueError('no share')",
        "  rounds done: 0, no checkpoint yet; the run can only begin anew",
    ]


LATE = """
def server(self, fed, state, mean, cohort):
    if fed.t == 2 and fed.K == 3:  # not in the trial before the run
        raise ArithmeticError("late")
    return mean
"""


def test_an_exception_of_the_users_code_loses_no_round_of_one_process(module, tmp_path, capsys):
    name = module(method(LATE))
    words = [*SMALL, "--models.mix", "mlp", "--algorithm.name", f"{name}:Mine", "--rounds", "3"]
    with pytest.raises(SystemExit):
        main([*words, "--checkpoint.every", "0", "--out", "late"])
    err = capsys.readouterr().err
    assert f"{name}.py, line " in err and "ArithmeticError: late" in err
    assert f"rounds done: 2, last checkpoint: {names.checkpoint_file(Path('late'), 2)}; " in err
    assert f"continue with --resume late --algorithm.name {name}:Mine" in err
    file = tmp_path / f"{name}.py"
    file.write_text(file.read_text().replace("fed.t == 2", "False"))
    sys.modules.pop(name)
    resumed = ["--resume", "late", "--algorithm.name", f"{name}:Mine", "--own-changed"]
    assert main([*resumed, "--quiet"]) == 0
    assert main([*words, "--out", "unbroken"]) == 0
    assert digest(Path("late")) == digest(Path("unbroken"))


def test_the_rehearsal_changes_no_bit(module, monkeypatch):
    """Not even of a method that draws from torch's global generator, as none should."""
    name = module(method(LOSS + "return F.cross_entropy(model(x) + torch.rand(1), y)"))
    words = [*SMALL, "--algorithm.name", f"{name}:Mine", "--models.mix", "mlp"]
    before = torch.get_rng_state()
    assert main([*words, "--out", "with"]) == 0
    assert torch.equal(before, torch.get_rng_state())
    monkeypatch.setattr(decide, "rehearse", lambda *_: [])
    assert main([*words, "--out", "without"]) == 0
    assert digest(Path("with")) == digest(Path("without"))


WARNINGS = {
    "a dict of the class": (
        "seen: ClassVar = {}\n" + LOSS + "self.seen[client.id] = x.sum()\n"
        "    return F.cross_entropy(model(x), y)",
        "Mine.loss: seen of Mine changes during the run; no checkpoint saves it",
    ),
    "a private value": (
        "_rounds: int = 0\n" + LOCAL + "self._rounds += 1\n"
        "    return super().local(fed, client, state, t)",
        "Mine.local: _rounds of Mine changes during the run",
    ),
    "nothing shared": (
        "def shared(self, name):\n    return name.startswith('classifier')",
        "Mine.shared is false for all tensors (body.",
    ),
    "no upload": (
        LOCAL + "super().local(fed, client, state, t)\n    return",
        "Mine.local returns None in all turns of a trial; if it does in the run, clients",
    ),
    "no weight": (
        "def weight(self, client):\n    return 0.0",
        "Mine.weight: in a trial all uploads have the weight 0",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_a_hook_that_may_be_mistaken_gives_one_warning(module, case, capsys):
    body, words = WARNINGS[case]
    name = module(method(body))
    assert main([*SMALL, "--algorithm.name", f"{name}:Mine", "--models.mix", "mlp"]) == 0
    err = capsys.readouterr().err
    assert words in err and err.count("warning: ") == 1


# bodies of `local` and of other hooks that are as they should be
FINE = {
    "a weight for each tensor": (
        LOCAL + "sent = super().local(fed, client, state, t).value.terms[0].value\n"
        "    return Upload(Mean.of(sent, Params({n: torch.tensor(2.0) for n in sent})))\n"
        "per: ClassVar = 'tensor'"
    ),
    "some of the tensors": (
        LOCAL + "part = super().local(fed, client, state, t).value.terms[0].value\n"
        "    return Upload(Mean.of(part.pick(lambda name: name.startswith('head.')), 2.0))\n"
        "per: ClassVar = 'tensor'"
    ),
    "a sparse tensor of the class": "mixing: ClassVar = torch.eye(3).to_sparse()",
    "a last step": "def finish(self, fed, state, t):\n    return state * 0.9\n",
    "a value that is computed once": (
        "@cached_property\ndef table(self):\n    return torch.eye(2)\n"
        + LOSS
        + "return F.cross_entropy(model(x), y) + 0 * self.table.sum()"
    ),
    "part of a tensor of the class": "steps: ClassVar = torch.arange(6.)[::2]",
    "momentum of the server": (
        "per: ClassVar = 'tensor'\n"
        "def offer(self, fed, client, state):\n"
        "    return state.pick(lambda name: not name.startswith('m/'))\n"
        "def server(self, fed, state, mean, cohort):\n"
        "    return Params(mean, **{'m/head.bias': mean['head.bias'] * 0.5})"
    ),
    "a download of the client's own": (
        "def offer(self, fed, client, state):\n    return state * 1.0\n" + LOCAL + "download = "
        "fed.down(client, self.offer(fed, client, state))\n"
        "    for value in download.values(): value.mul_(0.9)\n"
        "    self.receive(client, download)\n    self.train(fed, client, download, t)\n"
        "    return Upload(Mean.of(client.params(), 1.0))"
    ),
}


@pytest.mark.parametrize("case", FINE)
def test_what_a_hook_may_do_is_neither_refused_nor_warned_of_and_is_tried(module, case, capsys):
    """A mistake in the last hook is reported before the run: the trial has come that far."""
    name = module(method(FINE[case]))
    words = [*SMALL, "--models.mix", "mlp", "--out", "r", "--algorithm.name"]
    assert main([*words, f"{name}:Mine"]) == 0
    assert not capsys.readouterr().err
    if case == "a last step":
        return
    name = module(method(FINE[case] + "\ndef finish(self, fed, state, t):\n    return fed.stat"))
    assert main([*words, f"{name}:Mine", "--overwrite"]) == 2
    assert "AttributeError" in capsys.readouterr().err


def test_frozen_layers_that_all_models_share_stay_as_they_are(module):
    frozen = PREPARE + "self.one = GLOBAL.requires_grad_(False)\n" + INNER + "return self.one(z)"
    _, name, net = own_model(module, frozen)
    weight = net(256, 10).one.weight
    before = weight.clone()
    mine = module(method("mu: float = 0.1"))
    words = [*SMALL, "--models.mix", name, "--algorithm.name"]
    for algorithm in (f"{mine}:Mine", "fedavg"):
        assert main([*words, algorithm, "--out", algorithm.replace(":", "_")]) == 0
    assert torch.equal(weight, before) and not weight.requires_grad
    assert digest(Path(f"{mine}_Mine")) == digest(Path("fedavg"))


@pytest.mark.parametrize("nothing", ["if client.id: return", "if client.id: return None"])
def test_a_client_may_send_nothing_if_the_hook_says_so(module, nothing):
    send = f"{nothing}\n    return super().local(fed, client, state, t)"
    name = module(method(LOCAL + send))
    words = [*SMALL, "--algorithm.name", f"{name}:Mine", "--models.mix", "mlp", "--out", "one"]
    assert main(words) == 0
    assert (results.load(Path("one")).column("clients/up") > 0).tolist() == [[True, False, False]]


def test_a_method_that_draws_and_keeps_views_has_the_same_bits_after_a_resume(tmp_path):
    careless = ["--algorithm.name", "tests.system.careless:Careless", "--models.mix", "mlp"]
    long, short = str(tmp_path / "long"), str(tmp_path / "short")
    assert main([*SMALL, *careless, "--out", long, "--rounds", "2"]) == 0
    assert main([*SMALL, *careless, "--out", short]) == 0
    assert main(["--resume", short, *careless[:2], "--rounds", "2", "--quiet"]) == 0
    assert digest(Path(long)) == digest(Path(short))


def test_a_method_that_trains_on_the_test_examples_is_named_with_its_line(module, capsys):
    sent = "sent = super().local(fed, client, state, t)\n    "
    evaluated = "with torch.no_grad():\n        client.test.batch(client.test.rows[:1] * 0)\n    "
    trained = "client.train = client.test\n    "
    for body, expected in ((sent + evaluated, False), (trained + sent, True)):
        text = method(LOCAL + body + "return sent")
        name = module(text)
        words = [*SMALL, "--algorithm.name", f"{name}:Mine", "--models.mix", "mlp"]
        assert main([*words, "--out", f"runs/{name}"]) == 0
        place = f"{name}.py, line {line(text, 'sent = super')}: client.test is read with gradients"
        assert (place in capsys.readouterr().err) == expected


STOP = """

def stop(run, row):
    if row["round"] == 1:
        signal.raise_signal(signal.SIGTERM)


def share(outputs, labels):
    return 0.5


def small(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(256, num_classes))
"""


def test_a_stopped_run_says_with_which_words_it_continues_among_them_the_users_names(
    module, capsys
):
    name = module("import signal\n" + method("mu: float = 0.1") + STOP)
    words = shlex.split(
        f"--clients 3 --data.train_limit 60 --rounds 2 --out 'my run' --algorithm.name {name}:Mine "
        f"--models.mix {name}:small --on-round {name}:stop --evaluate.metrics {name}:share"
    )
    assert main(words) == RESUME_ME
    [said] = [row for row in capsys.readouterr().out.splitlines() if row.startswith("stopped")]
    flags = said.partition("after round 1; continue with ")[2]
    assert main([*shlex.split(flags), "--quiet"]) == 0
    assert len(hpcfed.load("my run")) == 2


def test_a_hook_may_call_its_parameters_as_it_likes(module):
    call = "return super().local(world, holder, given, r)"
    name = module(method(f"def local(self, world, holder, given, r):\n    {call}"))
    words = [*SMALL, "--algorithm.name", f"{name}:Mine", "--models.mix", "mlp"]
    assert main([*words, "--out", "renamed"]) == 0


def test_a_method_may_wrap_the_default_training(module):
    call = "return super().train(fed, client, received, t, **how)"
    name = module(method(f"def train(self, fed, client, received, t, **how):\n    {call}"))
    words = [*SMALL, "--models.mix", "mlp"]
    assert main([*words, "--algorithm.name", f"{name}:Mine", "--out", "wrapped"]) == 0
    assert main([*words, "--algorithm.name", "fedavg", "--out", "fedavg"]) == 0
    assert digest(Path("wrapped")) == digest(Path("fedavg"))


NET = """
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, num_classes, in_channels, hidden=24):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 4, 3, padding=1)
        self.dense = nn.Linear(4 * 64, hidden)
        self.last = nn.Linear(hidden, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = F.relu(self.dense(x.view(len(x), -1)))
        return self.last(x)


class Fixed(Net):
    def __init__(self):
        super().__init__(10, 1)


def made(channels, n_classes):
    return Net(n_classes, channels)
"""


FROZEN = NET.replace(
    "        self.last =",
    """        self.conv.requires_grad_(False)
        self.order = nn.Parameter(torch.arange(hidden), requires_grad=False)
        self.last =""",
)


def test_a_parameter_with_a_default_or_bound_by_partial_keeps_its_value(module):
    name = module(
        NET
        + "\nclass Wide(Net):\n"
        + "    def __init__(self, in_channels, num_classes, width=8, d=4):\n"
        + "        super().__init__(num_classes, in_channels, width)\n\n"
        + "class Drop(Net):\n"
        + "    def __init__(self, dropout=0.1, norm=True):\n"
        + "        assert (dropout, norm) == (0.1, True)\n"
        + "        super().__init__(10, 1)\n"
    )
    imported = import_module(name)
    imported.bound = partial(imported.Wide, width=6)
    for kind, width in {"Wide": 8, "bound": 6, "Drop": 24}.items():
        assert build(f"{name}:{kind}", (1, 16, 16), 10, d=512).head.in_features == width
    call = describe_call(imported.bound, (1, 16, 16), 10, 512)
    assert call == "Wide(in_channels=1, num_classes=10, width=6)"


def test_a_default_that_does_not_fit_the_data_is_named(module, capsys):
    name = module(net("num_classes, in_channels,", "num_classes, in_channels=3,"))
    assert main([*SMALL, "--models.mix", f"{name}:Net", "--algorithm.name", "fedavg"]) == 2
    err = capsys.readouterr().err
    assert "in_channels = 3 is a default" in err and "it would be 1" in err


def test_a_run_prints_its_input_shape_and_the_call_of_a_users_model(module, capsys):
    name = module(NET)
    words = [word for word in SMALL if word != "--quiet"]
    for last in (["--dry-run"], ["--rounds", "1"]):
        assert (
            main([*words, "--models.mix", f"{name}:Net", "--algorithm.name", "fedavg", *last]) == 0
        )
        out = capsys.readouterr().out
        assert "inputs: images of 1 x 16 x 16 (channels x height x width); 10 classes" in out
        assert f"model {name}:Net: 6,458 parameters, from Net(num_classes=10, in_channels=1)" in out


@pytest.mark.parametrize("kind", ["Net", "Fixed", "made"])
def test_a_plain_module_is_split_into_body_and_head_and_computes_the_same(module, kind):
    name = module(NET)
    with rng.scoped(0, "init"):
        net = import_module(name).Net(10, 1)
    with rng.scoped(0, "init"):
        model = build(f"{name}:{kind}", (1, 16, 16), 10, d=512)
    x = torch.rand(3, 1, 16, 16)
    assert torch.equal(model(x), net(x))
    assert model.body(x).shape == (3, 24)
    assert torch.equal(model.head.weight, net.last.weight)
    assert {n for n, _ in model.named_parameters() if "last" in n} == set()
    assert represents(f"{name}:{kind}", (1, 16, 16), 10, 512) == 24


def test_a_plain_module_trains_to_the_same_bits_with_each_engine_and_can_be_loaded(module):
    name = module(FROZEN)
    words = [*SMALL, "--models.mix", f"{name}:Net", "--algorithm.name", "fedavg"]
    for engine_ in ("eager", "traced"):
        assert main([*words, "--out", engine_, "--training.engine", engine_]) == 0
    assert digest(Path("eager")) == digest(Path("traced"))
    model = hpcfed.load_model("traced", client=0, own=[f"{name}:Net"])
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    assert model.represent(torch.zeros(2, 1, 16, 16)).shape == (2, 24)


def test_clients_with_a_common_head_need_plain_modules_of_one_width(module, capsys):
    words = [*SMALL, "--models.mix", f"{module(NET)}:Net,mlp"]
    assert main([*words, "--algorithm.name", "lgfedavg"]) == 2
    assert "set models.d = 24" in capsys.readouterr().err
    words[-1] += f",{module(net('24', '20'))}:Net"
    assert main([*words, "--algorithm.name", "lgfedavg"]) == 2
    message = capsys.readouterr().err
    assert "set models.d" not in message and "take a method for any models, such as fd" in message
    words[-1] = words[-1].rpartition(",")[0]
    assert main([*words, "--algorithm.name", "lgfedavg", "--models.d", "24"]) == 0
    assert main([*words, "--algorithm.name", "local", "--out", "local"]) == 0


def net(old: str, new: str) -> str:
    assert old in NET
    return NET.replace(old, new)


# By name: the file, and what the message must hold.
MODELS = {
    "size": (net("4 * 64", "400"), "gets 256 values and was made for 400"),
    "inputs": (net("4 * 64", "400"), "two inputs of this data set have shape [2, 1, 16, 16]"),
    "parameters": (net("hidden=24", "*, hidden"), "Net wants hidden, which hpcfed does not know"),
    "super": (net("        super().__init__()\n", ""), "before Module.__init__() call"),
    "softmax": (
        net("self.last(x)", "F.log_softmax(self.last(x), 1)"),
        "the model ends in log_softmax; return the output of last as it is",
    ),
    "tuple": (net("self.last(x)", "self.last(x), x"), "the model returns a tuple"),
    "no return": (net("return self", "self"), "the model returns a NoneType"),
    "classes": (net("hidden, num_classes)", "hidden, 7)"), "makes [2, 7] of two inputs"),
    "no module": ("class Net:\n    pass", "class Net is not a torch.nn.Module"),
    "nothing": ("def Net(shape, d):\n    pass", "Net returns None (is a `return` missing?)"),
    "a number": ("def Net(shape, d):\n    return 3", "Net returns 3; return a torch.nn.Module"),
    "an instance": ("from torch import nn\nNet = nn.Linear(3, 4)", "one existing module"),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model_that_cannot_be_used_is_refused_with_its_file(module, case):
    text, words = MODELS[case]
    name = module(text)
    with pytest.raises(ConfigError) as refusal:
        build(f"{name}:Net", (1, 16, 16), 10, 16)
    assert words in str(refusal.value)
    assert case == "an instance" or f"{name}.py, line " in str(refusal.value)


BASE = """
import copy
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

GLOBAL = nn.Linear(8, 8)


class Base(nn.Module):
    def __init__(self, in_features, num_classes):
        super().__init__()
        self.dense, self.last = nn.Linear(in_features, 8), nn.Linear(8, num_classes)
        self.prepare()

    def prepare(self):
        pass

    def forward(self, x):
        return self.last(self.inner(F.relu(self.dense(x.flatten(1)))))

    def inner(self, z):
        return z


class Net(Base):
"""
PREPARE, INNER = "def prepare(self):\n    ", "def inner(self, z):\n    "
UNTRAINED = {  # by what is wrong: the class, and what the message must hold
    "list": (
        PREPARE + "self.layers = [nn.Linear(8, 8)]\n" + INNER + "return self.layers[0](z)",
        "layers is a plain list, .* make it an nn.ModuleList, or freeze",
    ),
    "dict": (PREPARE + "self.parts = {'a': [nn.Linear(8, 8)]}", "parts is a plain dict, .* nn.Mod"),
    "tensor": (PREPARE + "self.w = torch.ones(8, requires_grad=True)", "make it an nn.Parameter"),
    "no_grad": (
        "def forward(self, x):\n    with torch.no_grad():\n"
        "        z = self.dense(x.flatten(1))  # here\n    return self.last(z)",
        "line LINE: forward uses dense.weight, dense.bias under torch.no_grad.., .* or freeze them",
    ),
    "detach": (
        INNER + "return z.detach()",
        "forward uses dense.weight, dense.bias in a way that gives them no gradient",
    ),
    "global": (
        INNER + "return GLOBAL(z)  # here",
        r"line LINE: forward uses a parameter of shape \[8, 8\] that is no part of the model",
    ),
    "made in each call": (
        INNER + "return nn.Linear(8, 8)(z)  # here",
        "line LINE: forward uses a parameter of shape .* that is no part of the model",
    ),
    "registered global": (
        PREPARE + "self.one = GLOBAL",
        "Net makes has the same one.weight, .*cop",
    ),
    "drawn, and no buffer": (
        PREPARE + "self.B = torch.randn(8, 8)\n" + INNER + "return z @ self.B",
        r"line \d+: B is drawn and is no buffer, .* write self.register_buffer\('B', ...\)",
    ),
    "drawn by NumPy": (
        PREPARE + "self.order = np.random.permutation(8)\n" + INNER + "return z[:, self.order]",
        r"order is drawn .* write self.register_buffer\('order', torch.from_numpy\(...\)\)",
    ),
    "drawn, in a dict": (
        PREPARE + "self.all = {'a': torch.randperm(8)}",
        r"all is drawn and .* write self.register_buffer\(name, ...\) for each tensor in all",
    ),
    "a layer that is drawn and frozen, in a list": (
        PREPARE + "self.all = [nn.Linear(8, 8).requires_grad_(False)]",
        "all is drawn and is no buffer, .* write an nn.ModuleList",
    ),
}


STORED = PREPARE + "self.register_buffer('k', torch.zeros(()))\n" + INNER
COUNTED = INNER + "self.k = self.k + self.training  # here\n    return z * (1 + self.k)"
CHANGING = {  # by what forward changes: the class, and what the message must hold
    "a number": (PREPARE + "self.k = 0\n" + COUNTED, "forward changes k, on which later outputs"),
    "an integer buffer": (
        PREPARE + "self.register_buffer('k', torch.tensor(0))\n" + COUNTED,
        "floating-point buffer that forward changes in place, with self.register_buffer\\('k'",
    ),
    "a running mean that evaluation reads": (
        PREPARE
        + "self.mean = torch.zeros(8)\n"
        + INNER
        + "if self.training:\n        self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)\n"
        + "        return z\n    return z - self.mean",
        "forward changes mean",
    ),
    "a list": (
        PREPARE
        + "self.past = []\n"
        + INNER
        + "self.past.append(z.detach().mean())\n    return z + sum(self.past)",
        "forward changes past",
    ),
    "a flag after the first call": (
        PREPARE
        + "self.scale, self.ready = nn.Parameter(torch.ones(8)), False\n"
        + INNER
        + "if not self.ready:\n        self.scale.data = 1 + z.detach().std(0)\n"
        + "    self.ready = True\n    return z * self.scale",
        "forward changes ready",
    ),
    "a buffer that is replaced": (
        STORED + "self.k = self.k + 1\n    return z * self.k",
        r"forward replaces the buffer k, .* write self.k.copy_\(...\)",
    ),
}
UNCHANGING = {
    "a floating-point buffer in place": STORED + "self.k.add_(1)\n    return z * self.k",
    "what an observer reads": (
        PREPARE
        + "self.calls, self.z, self.mask = 0, None, {}\n    self.one = nn.BatchNorm1d(8)\n"
        + INNER
        + "self.calls, self.z = self.calls + 1, z\n"
        + "    mask = self.mask.setdefault(len(z), torch.ones(len(z), 1))\n"
        + "    return F.dropout(self.one(z * mask), 0.5, self.training)"
    ),
}

TRAINED = {  # by what is unusual and meant: the body of the class
    "layers that are registered too, or have no parameters": (
        PREPARE + "self.layers = [self.dense, nn.ReLU()]\n    self.order = {'a': [3, self.layers]}"
    ),
    "frozen": (
        PREPARE
        + "self.dense.requires_grad_(False)\n    self.teacher = [copy.deepcopy(GLOBAL)]\n"
        + "    self.teacher[0].requires_grad_(False)\n"
        + INNER
        + "with torch.no_grad():\n        return self.teacher[0](z)"
    ),
    "an exit that is used now and then": (
        PREPARE
        + "self.exit = nn.Linear(8, 10)\n"
        + INNER
        + "return z + self.exit(z).mean() if self.training and len(z) == 3 else z"
    ),
    "without gradient in evaluation": (INNER + "return z if self.training else z.detach()"),
    "a bias without influence on a derivative": """
    def inner(self, z):
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            return torch.autograd.grad(self.energy(z).sum(), z, create_graph=True)[0]

    def forward(self, x):
        z = x.flatten(1)[:, :8]
        return self.last(self.inner(z))

    def prepare(self):
        self.dense = None
        self.energy = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    """,
    "tensors without draws, and drawn buffers": (
        PREPARE
        + "self.grid, self.none = torch.arange(8), torch.full((2,), torch.nan)\n"
        + "    self.order = np.random.default_rng(0).permutation(8)\n"
        + "    self.register_buffer('B', torch.randn(8, 8), persistent=False)\n"
        + INNER
        + "return z[:, self.order] @ self.B + self.grid"
    ),
    "a copy of a global": PREPARE + "self.one = copy.deepcopy(GLOBAL)",
    **UNCHANGING,
    "a norm of weights": (
        PREPARE + "self.one = nn.utils.parametrizations.weight_norm(nn.LSTM(8, 8), 'weight_hh_l0')"
    ),
}


@pytest.mark.parametrize("case", CHANGING)
def test_a_model_whose_later_outputs_depend_on_what_no_client_stores_is_refused(module, case):
    body, words = CHANGING[case]
    _, name, net = own_model(module, body)
    with pytest.raises(ConfigError, match=words):
        untrained.refuse(name, net, (1, 4, 4), 10, 16, train=(), lora=0, by_output=True)


def own_model(module, body):
    """Return the text of a file with class Net of this body, its name, and the class."""
    text = BASE + indent(dedent(body), "    ") + "\n"
    name = f"{module(text)}:Net"
    return text, name, user_code.load("models.mix", name, "module:Class")


@pytest.mark.parametrize("case", UNTRAINED)
def test_a_part_of_a_users_model_that_no_client_would_train_is_refused(module, case):
    body, words = UNTRAINED[case]
    text, name, net = own_model(module, body)
    if "LINE" in words:
        words = words.replace("LINE", str(line(text, "# here")))
    with pytest.raises(ConfigError, match=words):
        untrained.refuse(name, net, (1, 4, 4), 10, 16, train=(), lora=0, by_output=True)


@pytest.mark.parametrize("case", TRAINED)
def test_a_model_whose_parameters_get_a_gradient_now_and_then_or_are_frozen_is_not_refused(
    module, case
):
    _, name, net = own_model(module, TRAINED[case])
    untrained.refuse(name, net, (1, 4, 4), 10, 16, train=(), lora=0, by_output=True)
    build(name, (1, 4, 4), 10, 16)


def test_a_loss_of_ones_own_and_models_train_may_leave_a_part_without_gradient(module, capsys):
    _, name, _ = own_model(module, UNTRAINED["detach"][0])
    with_loss = module(method(LOSS + "return F.cross_entropy(model(x), y)"))
    words = [*SMALL, "--models.mix", name, "--dry-run", "--algorithm.name"]
    assert main([*words, f"{with_loss}:Mine"]) == 0
    assert main([*words, "fedavg", "--models.train", "head.*"]) == 0
    assert main([*words, "fedavg"]) == 2
    err = capsys.readouterr().err
    assert "so that no client would train them" in err and "Traceback" not in err


LAZY = (
    "def prepare(self):\n    self.dense, self.one = nn.LazyLinear(8), nn.LazyBatchNorm1d()\n"
    "    self.last = nn.LazyLinear(10)\n" + INNER + "return self.one(z)"
)


def test_lazy_layers_get_their_weights_from_the_clients_stream_as_others_do(module):
    _, name, _ = own_model(module, LAZY)
    weights = []
    for seed in (1, 1, 2):
        with rng.scoped(seed, "init", 0):
            model = build(name, (1, 4, 4), 10)
        weights.append(model.body.dense.weight)
    assert weights[0].shape == (8, 16) and model.head.weight.shape == (10, 8)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    words = [*SMALL, "--models.mix", name, "--algorithm.name", "fedavg", "--out", "lazy"]
    assert main(words) == 0


def test_a_lazy_layer_that_forward_does_not_call_is_refused(module):
    _, name, _ = own_model(module, PREPARE + "self.one = nn.LazyLinear(8)")
    with pytest.raises(ConfigError, match="one.weight is of a lazy layer, .* remove that layer"):
        build(name, (1, 4, 4), 10)


def test_batch_normalisation_of_one_example_takes_the_running_statistics(module):
    _, name, _ = own_model(
        module, PREPARE + "self.one = nn.BatchNorm1d(8)\n" + INNER + "return self.one(z)"
    )
    model = build(name, (1, 4, 4), 10)
    net, plain, x = model.body.one, nn.BatchNorm1d(8), torch.randn(3, 8)
    assert torch.equal(net(x), plain(x)) and torch.equal(net.running_var, plain.running_var)
    before = net.running_mean.clone()
    assert torch.equal(net(x[:1]), plain.eval()(x[:1])) and torch.equal(net.running_mean, before)
    words = [*SMALL, "--models.mix", name, "--algorithm.name", "fedavg"]  # 3 clients
    assert main([*words, "--data.partition", "iid", "--local.batch", "1", "--out", "ones"]) == 0


COMPILED = "\n\ndef made(num_classes, in_channels):\n    net = Net(num_classes, in_channels)\n"
TENSORS = {
    "script": ("    return torch.jit.script(net)", "the model is a module of torch.jit"),
    "a layer": (
        "    net.last = torch.jit.script(net.last)\n    return net",
        "last is a module of torch.jit",
    ),
    "expand": (
        "    net.scale = nn.Parameter(torch.ones(1).expand(4))\n    return net",
        "scale has 4 values in the memory of fewer (expand)",
    ),
    "sparse": (
        '    net.register_buffer("mask", torch.eye(4).to_sparse())\n    return net',
        "mask is a sparse tensor; make it dense",
    ),
}


@pytest.mark.parametrize("case", TENSORS)
def test_compiled_modules_and_tensors_that_cannot_be_written_in_place_are_refused(module, case):
    text, words = TENSORS[case]
    with pytest.raises(ConfigError, match=re.escape(words)):
        build(f"{module(NET + COMPILED + text)}:made", (1, 16, 16), 10)


DRAWS = NET.replace("x.view(len(x), -1)", "x.view(len(x), -1) + torch.rand(len(x), 256)")


def test_a_model_that_draws_in_evaluation_has_the_same_bits_after_a_resume(module):
    words = [*SMALL, "--models.mix", f"{module(DRAWS)}:Net", "--algorithm.name", "fedavg"]
    words += ["--evaluate.before", "true", "--evaluate.every", "1"]
    assert main([*words, "--rounds", "2", "--out", "whole"]) == 0
    assert main([*words, "--out", "parts"]) == 0
    assert main([*words, "--rounds", "2", "--resume", "parts"]) == 0
    assert digest(Path("whole")) == digest(Path("parts"))


def test_frozen_parameters_of_a_users_model_are_constants(module):
    model = build(f"{module(FROZEN)}:Net", (1, 16, 16), 10)
    layout = Layout.of(model)
    assert not {"body.conv.weight", "body.order"} & set(layout.params)
    assert {"body.conv.weight", "body.conv.bias"} <= set(layout.buffers)
    assert layout.integers == ("body.order",)


def test_a_fully_frozen_users_model_is_refused(module):
    text = NET + "\n\ndef frozen(num_classes, in_channels):\n"
    text += "    return Net(num_classes, in_channels).requires_grad_(False)\n"
    with pytest.raises(ConfigError, match="all of its parameters are frozen"):
        build(f"{module(text)}:frozen", (1, 16, 16), 10)


HEADLESS = {  # by what the model ends in: the file, and why it has no head
    "convolution": (
        net("self.last(x)", "x")
        .replace("F.relu(self.dense(x.view(len(x), -1)))", "self.all(x).mean((2, 3))")
        .replace("self.last = nn.Linear(hidden", "self.all = nn.Conv2d(4")
        .replace("num_classes)\n\n", "num_classes, 1)\n\n"),
        "ends in no linear layer that is used once",
    ),
    "scaled": (
        net("self.last(x)", "self.last(x) * 2"),
        "ends in no linear layer that is used once",
    ),
    "bias": (net("num_classes)\n\n", "num_classes, bias=False)\n\n"), "last, has no bias"),
}


@pytest.mark.parametrize("case", HEADLESS)
def test_a_model_without_a_last_linear_layer_is_refused_only_by_methods_that_read_it(
    module, capsys, case
):
    text, words = HEADLESS[case]
    name = module(text)
    flags = [*SMALL, "--models.mix", f"{name}:Net"]
    for method in ("fedavg", "local", "ifca"):
        assert main([*flags, "--algorithm.name", method, "--out", method]) == 0
    x = torch.rand(2, 1, 16, 16)
    model = hpcfed.load_model("fedavg", client=0, own=[f"{name}:Net"])
    assert model(x).shape == (2, 10) and torch.equal(model.represent(x), model(x))
    for refused in (["lgfedavg"], ["moon"], ["ifca", "--algorithm.share_body", "true"]):
        assert main([*flags, "--algorithm.name", *refused]) == 2
        message = capsys.readouterr().err
        assert f"{refused[0]} needs the head of each model" in message and words in message
        assert f"{name}.py, line " in message and "such as fedavg" in message


def test_a_users_file_may_import_torchvision_first(tmp_path):
    """In a process of its own, for here it may have been imported."""
    (tmp_path / "seeing.py").write_text(
        "from torchvision.models import resnet18\n\n\ndef net(shape, d):\n    return resnet18()\n"
    )
    code = (
        "import sys; from hpcfed.core import user_code\n"
        "assert 'torchvision' not in sys.modules\n"
        "print(user_code.load('models.mix', 'seeing:net', 'module:function'))"
    )
    done = subprocess.run(
        [forked.python(), "-c", code],
        cwd=tmp_path,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
    )
    assert done.stdout.startswith("<function net"), done.stderr


def test_a_file_outside_the_path_and_a_missing_file_have_different_messages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])  # as a command has it
    (tmp_path / "lying_here.py").write_text(CLASS)
    with pytest.raises(ConfigError, match=r"lying_here\.py is in .* start with `PYTHONPATH=\.`"):
        algorithm_model("lying_here:Mine")


def test_a_file_beside_the_users_module_is_the_users_and_an_installed_one_is_not(module, tmp_path):
    user_code.load("models.mix", f"{module('x = 1')}:x", "module:function")
    assert user_code.is_own(str(tmp_path / "helper.py"))
    assert not user_code.is_own(nn.__file__)
    assert not user_code.is_own(hpcfed.__file__)
    assert not user_code.is_own(subprocess.__file__)


def test_a_method_of_ones_own_needs_one_import_line(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text(
        "from hpcfed import Client, EventBased, LocalSteps, Mean, Paired, Params, RoundBased\n"
        "from hpcfed import Share, State, infer, losses, rng, sgd\n"
        "class One(RoundBased):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert issubclass(
        user_code.load("algorithm.name", "one:One", "module:Class"), hpcfed.RoundBased
    )


def test_list_names_everything_and_each_target_exists():
    assert [name for name in dir(hpcfed) if getattr(hpcfed, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hpcfed.nothing  # noqa: B018
