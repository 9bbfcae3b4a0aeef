"""Job files, the environment and the command line: whatever they hold, a job or one message."""

import json
import math
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from hpcfed.algorithms import ALGORITHMS
from hpcfed.config.files import MOST
from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.core.errors import HpcfedError, format_error
from tests.attack.claims import TINY, damaged, refused, run, toml

ROOT = Path(__file__).parents[2]
JOBS = sorted((ROOT / "jobs").rglob("*.toml"))


def leaves(part: type[BaseModel], path: str = "") -> list[str]:
    """Dotted names of all fields of a job, and of its parts."""
    inner = {name: field.annotation for name, field in part.model_fields.items()}
    nested = [
        n for n, kind in inner.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]
    return [path + n for n in inner] + [
        full for n in nested for full in leaves(inner[n], f"{path}{n}.")
    ]


OWN = {
    f"algorithm.{field}" for name in ALGORITHMS for field in ALGORITHMS[name].load().model_fields
}
FIELDS = st.sampled_from(sorted({*leaves(Job), *OWN, "algorithm.name", "extends", "no.such.field"}))
NUMBERS = st.sampled_from([0, 1, -1, 2, 2**31, 2**63, 2**64, 10**30, 10**400, 0.5, 1e-320, 1e308])
ODD = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        True,
        False,
        "",
        "[",
        "{",
        "1e400",
        "nan",
        "mlp",
        "fedavg",
        "all",
        "a,b",
        "~nobody/x.h5",
        "$(exit)",
        "a\nb",
        "a\0b",
        "ü漢😀",
        "x" * 5000,
        "../x",
    ]
)
ONE = st.one_of(NUMBERS, ODD, st.integers(), st.floats(), st.text(max_size=20))
VALUES = st.recursive(
    ONE, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3)
)
METHODS = st.sampled_from(sorted(ALGORITHMS))


def loads(*words: str) -> None:
    """A job comes of it, or one message."""
    try:
        load(words)
    except HpcfedError as error:
        assert str(error) and len(format_error(error)) < 150_000


@settings(max_examples=40)
@given(METHODS, st.dictionaries(FIELDS, VALUES, min_size=1, max_size=3))
def test_any_values_of_any_fields_in_a_file(tmp_path, method, values):
    text = "\n".join(
        f"{name} = {toml(value)}" for name, value in {"algorithm.name": method, **values}.items()
    )
    (tmp_path / "job.toml").write_text(text, encoding="utf-8", errors="replace")
    loads(str(tmp_path / "job.toml"))


@settings(max_examples=50)
@given(
    st.one_of(
        st.binary(max_size=200), st.text(max_size=200).map(lambda t: t.encode(errors="replace"))
    )
)
def test_any_bytes_as_a_file(tmp_path, content):
    (tmp_path / "job.toml").write_bytes(content)
    loads(str(tmp_path / "job.toml"))


def test_damaged_job_files(tmp_path):
    g = Random(0)
    for _ in range(50):
        (tmp_path / "job.toml").write_bytes(damaged(g.choice(JOBS).read_bytes(), g))
        loads(str(tmp_path / "job.toml"))


@settings(max_examples=30)
@given(FIELDS, st.one_of(ONE.map(str), VALUES.map(json.dumps)), st.booleans())
def test_any_text_for_any_flag(name, text, joined):
    loads(*([f"--{name}={text}"] if joined else [f"--{name}", text]))


@settings(max_examples=30)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=8),
            FIELDS.map("--{}".format),
            FIELDS.map("--no-{}".format),
            st.sampled_from(["--", "-", "true", "false", "-h1", "=", "--=", "a.toml", " "]),
        ),
        max_size=4,
    )
)
def test_any_words(words):
    loads(*[word for word in words if word not in ("-h", "--help")])


@settings(max_examples=25)
@given(FIELDS, st.one_of(ONE.map(str), VALUES.map(json.dumps)))
def test_any_text_in_any_variable(name, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCFED_" + name.upper().replace(".", "__"), text.replace("\0", "0"))
        loads()


DEEP = {
    "arrays": ("a = " + "[" * 3000 + "]" * 3000, "not a TOML file"),
    "tables": ("a = " + "{a = " * 3000 + "1" + "}" * 3000, "not a TOML file"),
    "dotted": ("data" + ".a" * 5000 + " = 1", "no field 'a'"),
    "digits": ("rounds = " + "9" * 5000, "not a TOML file: Exceeds the limit"),
    "fields": ("\n".join(f"k{i} = {i}" for i in range(2000)), "more lines"),
    "value": (f"rounds = '{'x' * 1_000_000}'", "rounds: input should be a valid integer"),
    "name": ("x" * 1_000_000 + " = 1", "Job takes: rounds"),
    "nothing": ("data.name = ''", "data.name: string should have at least 1 character"),
    "no_models": ("models.mix = []", "models.mix: value should have at least 1 item"),
    "no_widths": ("models.widths = []", "models.widths: tuple should have at least 1 item"),
    "threads": ("run.threads = 100000", "run.threads: input should be less than or equal to 1024"),
    "clients": (
        "clients = 10000000000",
        "clients: input should be less than or equal to 100000000",
    ),
    "nul": (
        'out = "a\\u0000b"',
        "out: a path has at least one character, and no NUL, got 'a\\x00b'",
    ),
    "unset": ("out = ''", "out: a path has at least one character"),
    "preset": (f"preset = '{'x' * 5000}'", "preset: input should be 'paper' or 'authors'"),
    "extends_nul": ('extends = ["a\\u0000b.toml"]', "cannot read the job file"),
    "extends_folder": ("extends = ['']", "Is a directory"),
    "extends_long": (f"extends = ['{'x' * 5000}']", "File name too long"),
    "home": ("data.name = '~nobody9/a.npz'", "no such file"),
}


@pytest.mark.parametrize("name", DEEP)
def test_a_file_beyond_measure_is_refused(tmp_path, name):
    text, message = DEEP[name]
    (tmp_path / "job.toml").write_text(text)
    refused(run(str(tmp_path / "job.toml"), "--dry-run"), message)


def test_files_that_extend_each_other_end(tmp_path):
    (tmp_path / "self.toml").write_text(f"extends = ['../{tmp_path.name}/self.toml']")
    refused(run(str(tmp_path / "self.toml")), "extends itself through")
    for i in range(40):
        (tmp_path / f"{i}.toml").write_text(f"extends = ['{i + 1}.toml', '{i + 1}.toml']")
    (tmp_path / "40.toml").write_text("seed = 1")
    refused(run(str(tmp_path / "0.toml")), f"extends more than {MOST} files")


def test_variables_that_name_no_field_are_refused(monkeypatch):
    for name, message in {
        "HPCFED_ROUNDS__X": "rounds has no such fields",
        "HPCFED_MODELS__MIX__0": "models.mix has no such fields",
        "HPCFED_DATA__SHIFT__NOISE__X": "data.shift.noise has no such fields",
        "hpcfed_rounds": "write it in capitals, HPCFED_ROUNDS",
        "HPCFED_": "no field ''",
    }.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            refused(run("--dry-run"), f"environment variable {name}", message)


def test_words_that_are_no_switch_are_not_lost():
    refused(
        run(*TINY, "--seed", "3", "true"),
        "'true' is neither a job file (.toml) nor the value of a --field",
    )
    refused(run(*TINY, "--quiet", " "), "command line: ' ' is neither")


def test_a_job_that_cannot_be_cancelled_is_reported(tmp_path):
    refused(
        run(*TINY, "--models.d", "1000000000", "--out", str(tmp_path / "run")),
        "out of memory",
        "models",
    )


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_a_launchers_variable_that_is_no_number_is_refused(monkeypatch, name):
    for other in [n for n in os.environ if n.startswith(("OMPI_", "PMI_", "PMIX_"))]:
        monkeypatch.delenv(other)
    monkeypatch.setenv(name, "many")
    refused(run("--dry-run"), f"environment variable {name}: 'many' is not a number of processes")
