"""A field states under which condition it has an effect; refusals and help follow from that."""

from typing import ClassVar, Literal

import pytest
from pydantic import NonNegativeFloat, PositiveInt

from hpcfed.algorithms.base import Method, RoundBased
from hpcfed.config.conditions import (
    SEVERAL,
    Scope,
    Unused,
    above,
    at_most,
    below,
    conditions,
    field,
    meaning,
    other_than,
    unless,
)
from hpcfed.config.effects import Effects, fields_in_vain
from hpcfed.config.help import help as help_of
from hpcfed.config.job import Job, job_model
from hpcfed.config.load import load
from hpcfed.config.words import CommandLine
from hpcfed.core.errors import ConfigError
from hpcfed.report.catalogue import show

pytestmark = pytest.mark.quick


class Mine(RoundBased):
    """A method with a field under each form of condition."""

    unused: ClassVar[Unused] = {
        "weighting": "nothing is averaged",
        "local.epochs": unless({"phases": 1}, "phases say how long clients train"),
    }

    contrastive: bool = False
    """Contrast."""
    tau: NonNegativeFloat = field(0.07, used_if="contrastive")
    """Temperature."""
    tau_base: NonNegativeFloat = field(1.0, used_if="tau")
    staleness: Literal["const", "poly", "hinge"] = "const"
    a: float = field(0.5, used_if={"staleness": ("poly", "hinge")})
    b: float = field(4.0, used_if={"staleness": other_than("const", "poly")})
    phases: PositiveInt = field(1, used_if={"models.mix": SEVERAL})
    after: int = field(0, used_if={"after": below("rounds"), "least": at_most("clients")})
    least: int = 2
    either: int = field(0, used_if=("contrastive", {"a": above(0.5)}), why="nothing to weigh")
    up: float = field(1.0, used_if="down")
    down: float = field(0.0, used_if={"up": other_than(1)})


def help(words: list[str]) -> str:
    return help_of(CommandLine.parse(words))


def reason(path: str, **fields: object) -> str:
    """Why a field has no effect in a job with these fields of the method; "" if it has one."""
    method = Mine(**{name: value for name, value in fields.items() if name in Mine.model_fields})
    top = {name: value for name, value in fields.items() if name not in Mine.model_fields}
    job = job_model("fedavg")(models={"mix": ("mlp",)}).model_copy(
        update={"algorithm": method, **top}
    )
    idle = Effects(job).idle(path)
    return idle.why if idle else ""


@pytest.mark.parametrize(
    "path, fields, why",
    [
        ("algorithm.tau", {}, "algorithm.contrastive = false"),
        ("algorithm.tau", {"contrastive": True}, ""),
        ("algorithm.a", {}, "algorithm.staleness = 'const'"),
        ("algorithm.a", {"staleness": "poly"}, ""),
        ("algorithm.b", {"staleness": "poly"}, "algorithm.staleness = 'poly'"),
        ("algorithm.b", {"staleness": "hinge"}, ""),
        ("algorithm.phases", {}, "models.mix = ['mlp']"),
        ("algorithm.after", {"after": 9, "rounds": 9}, "algorithm.after = 9 and rounds = 9"),
        ("algorithm.after", {"after": 8, "rounds": 9}, ""),
        ("algorithm.after", {"least": 3, "clients": 2}, "algorithm.least = 3 and clients = 2"),
        ("algorithm.either", {}, "nothing to weigh"),
        ("algorithm.either", {"contrastive": True}, ""),
        ("algorithm.either", {"a": 1.0, "staleness": "poly"}, ""),
        ("algorithm.weighting", {}, "nothing is averaged"),
        ("local.epochs", {"phases": 2}, "phases say how long clients train"),
    ],
)
def test_a_field_has_an_effect_if_its_condition_holds(path: str, fields: dict, why: str):
    assert reason(path, **fields) == why


def test_a_field_without_effect_meets_no_condition():
    assert reason("algorithm.tau_base") == "algorithm.contrastive = false"
    assert reason("algorithm.either", a=1.0) == "nothing to weigh"  # a: staleness is const


def test_two_fields_may_depend_on_each_other():
    assert reason("algorithm.up", down=1.0, up=2.0) == ""
    assert reason("algorithm.up") == "algorithm.down = 0.0"
    assert reason("algorithm.down", down=1.0) == "algorithm.up = 1.0"


@pytest.mark.parametrize(
    "name, text",
    [
        ("tau", "contrastive = true"),
        ("tau_base", "tau > 0"),
        ("a", "staleness = 'poly' or 'hinge'"),
        ("b", "staleness != 'const' or 'poly'"),
        ("phases", "models.mix has several values"),
        ("after", "after < rounds and least <= clients"),
        ("either", "contrastive = true or a > 0.5"),
        ("up", "down != 0"),
    ],
)
def test_a_condition_is_said_in_words(name: str, text: str):
    (condition,) = conditions(Mine)[name]
    assert Scope(Mine, Job).text(condition) == text


@pytest.mark.parametrize(
    "used_if, message",
    [
        (
            "contrastve",
            "Wrong: the condition of y names 'contrastve', which is not a field; did you m",
        ),
        ("local.stepz", "names 'local.stepz', which is not a field"),
        ({"staleness": "hing"}, "staleness is never 'hing'; did you mean 'hinge'?"),
        ({"local.optimiser": other_than("sdg")}, "local.optimiser is never 'sdg'; did you mean 's"),
        ({"least": below("round")}, "names 'round', which is not a field; did you mean 'rounds'?"),
    ],
)
def test_a_condition_that_cannot_be_is_refused_as_the_class_is_defined(used_if, message: str):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        type(
            "Wrong",
            (Mine,),
            {
                "__module__": __name__,
                "__annotations__": {"y": float},
                "y": field(0.0, used_if=used_if),
            },
        )


def test_a_field_that_never_has_an_effect_must_be_one():
    with pytest.raises(ValueError, match="names 'local.epoch', which is not a field"):
        type("Wrong", (Method,), {"__module__": __name__, "unused": {"local.epoch": "a reason"}})


def test_a_method_inherits_the_unused_fields_of_its_base():
    class Other(Mine):
        unused: ClassVar[Unused] = {"local.lr": "steps are of length 1"}

    assert {"weighting", "local.epochs", "local.lr"} <= conditions(Other).keys()


def test_a_users_method_refuses_jobs_that_violate_its_conditions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "contrast.py").write_text(
        "from hpcfed import RoundBased, field\n\n"
        "class Contrast(RoundBased):\n"
        "    contrastive: bool = False\n"
        "    tau: float = field(0.07, used_if='contrastive')\n"
    )
    flags = ["--algorithm.name", "contrast:Contrast", "--models.mix", "mlp"]
    with pytest.raises(
        ConfigError, match=r"contrast:Contrast: algorithm\.tau = 0\.5 has no effect"
    ):
        load([*flags, "--algorithm.tau", "0.5"])
    assert load([*flags, "--algorithm.tau", "0.5", "--algorithm.contrastive", "true"])
    assert "Used only if contrastive = true." in help([*flags, "--help", "algorithm.tau"])


def test_a_users_condition_with_a_typo_is_refused_with_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "typo.py").write_text(
        "from hpcfed import RoundBased, field\n\n"
        "class Typo(RoundBased):\n"
        "    contrastive: bool = False\n"
        "    tau: float = field(0.07, used_if='contrastve')\n"
    )
    with pytest.raises(
        ConfigError, match=r"typo\.py, line 3.*did you mean 'contrastive'"
    ) as refusal:
        load(["--algorithm.name", "typo:Typo"])
    assert "Traceback" not in str(refusal.value)


def test_help_and_show_say_the_condition():
    assert meaning(Mine, "tau", Job) == "Temperature. Used only if contrastive = true."
    assert "Used only if optimiser = 'sgd'." in help(["--help", "local.momentum"])
    facts = show("fedclassavg", json=True)
    (tau,) = [p for p in facts["parameters"] if p["name"] == "tau"]
    assert tau["meaning"].endswith("Used only if contrastive = true.")
    assert show("fedrep", json=True)["unused"].keys() == {"local.epochs", "local.steps"}


def test_momentum_is_refused_in_rounds_of_one_step_unless_a_round_is_more_than_one_training():
    flags = ["--models.mix", "mlp", "--local.optimiser", "sgd", "--local.momentum", "0.5"]
    flags += ["--local.steps", "1", "--algorithm.name"]
    for words in (["fedavg"], ["feddyn"], ["pfedme", "--algorithm.inner_steps", "1"]):
        with pytest.raises(ConfigError, match="the first step of a new optimiser"):
            load([*flags, *words])
    for words in (["fedavg", "--local.keep_optimiser", "true"], ["pfedme"], ["reptile"]):
        assert load([*flags, *words]).local.momentum == 0.5


IID, SKEWED = "[data]\npartition = 'iid'\n", "[data]\npartition = 'dirichlet'\n"
VAIN = "data.alpha = 0.1 has no effect with data.partition = 'iid'"


@pytest.mark.parametrize(
    "file, words, environ, lines",
    [
        (IID + "alpha = 0.1", "", {}, [VAIN]),
        (IID, "--data.alpha 0.1", {}, [VAIN]),
        (IID, "", {"HPCFED_DATA__ALPHA": "0.1"}, [VAIN]),
        (SKEWED, "--data.partition iid --data.alpha 0.1", {}, [VAIN]),
        (SKEWED + "alpha = 0.1", "--data.partition iid", {}, []),  # partitions are compared
        (SKEWED + "alpha = 0.1", "", {"HPCFED_DATA__PARTITION": "iid"}, []),
        (SKEWED, "--data.alpha 0.1", {}, []),
        (IID + "alpha = 0.5", "", {}, []),  # the default
        ("", "--data.shards_per_client 3", {}, ["data.shards_per_client = 3 has no effect with "]),
        (
            "",
            "--data.examples 20",
            {},
            ["data.examples = 20 has no effect with data.name = 'digits'"],
        ),
        (
            "",
            "--system.distribution file --system.file f.csv --system.speed 1e8",
            {},
            ["system.speed = 100000000.0 has no effect with system.distribution = 'file'"],
        ),
        (SKEWED + "alpha = 0.1\ntest_share = 0.5", "--data.partition_file p.h5", {}, []),
        (
            "",
            "--data.partition_file p.h5 --data.partition iid --data.test_share 0.5",
            {},
            [
                'data.partition = "iid" has no effect with data.name',
                "data.test_share = 0.5 has no ",
            ],
        ),
        (
            IID,
            "--data.partition_by client",
            {},
            ["data.partition_by = \"client\" has no effect with data.partition = 'iid'"],
        ),
    ],
)
def test_a_field_of_another_partition_is_refused_as_without_effect(
    tmp_path, file, words, environ, lines
):
    path = tmp_path / "job.toml"
    path.write_text(file)
    reasons = list(fields_in_vain(load([str(path), *words.split()], environ=environ)))
    assert [one[: len(line)] for one, line in zip(reasons, lines, strict=True)] == lines
