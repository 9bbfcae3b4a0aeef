"""Job files, flags, variables and names of any content: a job or an answer comes of each, or one
message.

`python benchmarks/fuzz.py [--examples 1000] [--seed 0]`

Hypothesis draws a number of examples per type. A job: an HpcfedError is right, any other exception
is not. A name, of a folder, a method, an architecture, a class: what is printed of it has to be
what a terminal shows, and as many lines as with a plain name; a run that takes a name can be read.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from paired import RESULTS, machine
from pydantic import BaseModel

import hpcfed
from hpcfed import cli
from hpcfed.algorithms import ALGORITHMS
from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.core.errors import HpcfedError, format_error
from hpcfed.core.tables import console
from hpcfed.report.watch import view
from hpcfed.report.watch.terminal import render
from hpcfed.results.run import find
from hpcfed.storage.results import Results

sys.path.insert(0, str(Path(__file__).parents[1]))  # to be run from anywhere

from tests.attack.claims import LONG, toml


def leaves(part: type[BaseModel], path: str = "") -> list[str]:
    """Dotted names of all fields of a job, and of its parts."""
    inner = {name: field.annotation for name, field in part.model_fields.items()}
    nested = [
        n for n, kind in inner.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
    ]
    deeper = [full for n in nested for full in leaves(inner[n], f"{path}{n}.")]
    return [path + n for n in inner] + deeper


METHODS = {n: entry.load() for n, entry in ALGORITHMS.items()}
OWN = {f"algorithm.{field}" for method in METHODS.values() for field in method.model_fields}
FIELDS = st.sampled_from(sorted({*leaves(Job), *OWN, "algorithm.name", "extends", "no.such.field"}))
MARKS = ("\x1b[31m", "\x1b]0;x\x07", "\n", "\r", "\u202e", "\u2066", "\x00", "\x9b", "\u2028", "\t")
ODD = st.sampled_from(
    [
        *(0, 1, -1, 2**31, 2**63, 10**30, 10**400, 0.5, 1e-320, 1e308, -0.0, True, False),
        *(math.nan, math.inf, -math.inf, "", "[", "{", "1e400", "nan", "mlp", "all", "a,b", "../x"),
        *("~nobody/x.h5", "$(exit)", "x" * 5000, "no:module", "a:b:c", ":", "x" * 300, *MARKS),
    ]
)
TEXT = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(MARKS)).map("".join))
ONE = st.one_of(ODD, st.integers(), st.floats(), TEXT)
VALUES = st.recursive(ONE, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3))
WORDS = st.one_of(
    TEXT,
    FIELDS.map("--{}".format),
    FIELDS.map("--no-{}".format),
    st.sampled_from(["--", "-", "true", "false", "=", "--=", "a.toml", " "]),
)
LETTERS = st.one_of(st.sampled_from(MARKS), st.characters(exclude_characters="/"))
# of a folder: as many escapes fit a line
NAMES = (
    st.lists(LETTERS, min_size=1, max_size=5)
    .map("".join)
    .filter(lambda name: name not in (".", "..") and "\0" not in name)
)


class Fuzz:
    """What is asked, with a count of the answers. place: a folder for files."""

    def __init__(self, place: Path):
        self.place, self.counts = place, Counter[str]()
        self.lines: dict[str, int] = {}

    def loads(self, *words: str) -> None:
        """A job comes of it, or one message."""
        try:
            load(words)
            self.counts["taken"] += 1
        except HpcfedError as error:
            assert str(error) and len(format_error(error)) < LONG
            self.counts["refused"] += 1

    def file(self, content: bytes) -> None:
        path = self.place / "job.toml"
        path.write_bytes(content)
        self.loads(str(path))

    def named(self, name: str) -> None:
        """A run folder of that name, and a run that speaks of it."""
        folder = self.place / "names" / name
        try:
            os.symlink(self.place / "run", folder)
        except (OSError, UnicodeEncodeError):  # no file system has it
            self.counts["no name"] += 1
            return
        try:
            for words in (["summary"], ["status"], ["table"], ["digest"]):
                self.printed(words[0], lambda words=words: cli.main([*words, str(folder)]))
            self.printed("absent", lambda: cli.main(["summary", f"{folder}?"]))
            self.printed("words", lambda: cli.main(["summary", "a", str(folder)]))
            self.printed("load", lambda: print(repr(hpcfed.load(folder))))
            self.printed("watch", lambda: look(folder))
        finally:
            folder.unlink()

    def labels(self, name: str) -> None:
        """A run whose method, data, classes and architectures have that name."""
        folder = self.place / "labels"
        try:
            run(folder, name)
        except HpcfedError as error:  # no file could hold it: said before the first round
            assert format_error(error).replace("\n", "").isprintable()
            self.counts["refused"] += 1
            return
        for words in (["summary"], ["status"], ["table"], ["cite"]):
            self.printed("", lambda words=words: cli.main([*words, str(folder)]))
        self.printed("", lambda: print(repr(hpcfed.load(folder))))
        self.printed("", lambda: look(folder))

    def printed(self, what: str, ask: Callable[[], Any]) -> None:
        """What is printed is what a terminal shows, in as many lines as for any other name.

        what: the question; "": one whose answer's length depends on the name.
        """
        out = io.StringIO()
        # argparse leaves by SystemExit
        with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):
            ask()
        lines = out.getvalue().split("\n")
        bad = [line for line in lines if not line.isprintable()]
        assert not bad, bad
        if what:
            assert len(lines) == self.lines.setdefault(what, len(lines)), lines
        self.counts["printed"] += 1


def look(folder: Path) -> None:
    console().print(render([view.look(one) for one in find([folder], required=False)], 100, 50))


def run(folder: Path, name: str) -> Path:
    """A run of one round that has this name everywhere."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"name": name, "partition": name}
    job = {"algorithm": {"name": name}, "data": data, "clients": 2, "rounds": 1, "seed": 0}
    about = {"classes": [name], "ended": "finished", "hardware": {"cpu": name}, "ranks": 1}
    results = Results(folder, {"job": job, "architectures": [name] * 2, **about}, {})
    results.append({"clients/accuracy": np.array([0.5, 1.0]), "rounds/seconds": 1.0})
    results.finish()
    return folder


def bytes_of(method: str, values: dict[str, Any]) -> bytes:
    lines = [
        f"{name} = {toml(value)}" for name, value in {"algorithm.name": method, **values}.items()
    ]
    return "\n".join(lines).encode(errors="replace")


def kinds(fuzz: Fuzz) -> dict[str, tuple[Callable[..., None], tuple[Any, ...]]]:
    """What is drawn, and what is asked of it."""
    table = st.dictionaries(FIELDS, VALUES, min_size=1, max_size=3)
    text = st.one_of(ONE.map(str), VALUES.map(json.dumps))

    def variable(name: str, value: str) -> None:
        key = "HPCFED_" + name.upper().replace(".", "__")
        value = value.replace("\0", "0").encode("utf-8", "replace").decode()
        os.environ[key] = value
        try:
            fuzz.loads()
        finally:
            del os.environ[key]

    return {
        "files of fields": (
            lambda method, values: fuzz.file(bytes_of(method, values)),
            (st.sampled_from(sorted(ALGORITHMS)), table),
        ),
        "files of bytes": (fuzz.file, (st.binary(max_size=200),)),
        "flags": (lambda name, value: fuzz.loads(f"--{name}={value}"), (FIELDS, text)),
        "words": (
            lambda words: fuzz.loads(*(w for w in words if w not in ("-h", "--help"))),
            (st.lists(WORDS, max_size=4),),
        ),
        "variables": (variable, (FIELDS, text)),
        "names of folders": (fuzz.named, (NAMES,)),
        "names in files": (fuzz.labels, (NAMES,)),
    }


def counted(ask: Callable[..., None], tried: Counter[str]) -> Callable[[Any], None]:
    """`ask` of values in a tuple, counting them."""

    def one(values: Any) -> None:
        tried["examples"] += 1
        ask(*values)

    return one


def found(examples: int, seed: int, place: Path) -> list[dict[str, Any]]:
    """A row a kind: how many examples, what came of them, and the first that was not right."""
    rows = []
    (place / "names").mkdir()
    run(place / "run", "plain")
    for kind in kinds(Fuzz(place)):
        fuzz = Fuzz(place)
        fuzz.named("plain")  # so many lines
        fuzz.counts.clear()
        ask, answer = kinds(fuzz)[kind]
        tried = Counter[str]()

        limits = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        fault = ""
        try:
            seeded(seed)(limits(given(values=st.tuples(*answer))(counted(ask, tried))))()
        except Exception as error:
            print(f"{kind}:\n{traceback.format_exc()[-3000:]}\n")
            fault = "\n".join([type(error).__name__, *getattr(error, "__notes__", [])[:1]])
        rows.append({"kind": kind, **tried, "answers": dict(fuzz.counts), "fault": fault})
        print(kind, dict(tried), dict(fuzz.counts))
    return rows


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=1000, help="examples per type")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    for name in [name for name in os.environ if name.upper().startswith("HPCFED_")]:
        del os.environ[name]
    with TemporaryDirectory(prefix="hpcfed-fuzz-") as folder:
        rows = found(options.examples, options.seed, Path(folder))
    text = {"benchmark": "fuzz", "machine": machine(), "seed": options.seed, "rows": rows}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "fuzz.json").write_text(json.dumps(text, indent=1) + "\n")
    return int(any(row["fault"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
