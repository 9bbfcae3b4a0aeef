"""What every answer to every input must be, and ways to damage bytes.

The claim: status 2 with one message, or 0; no traceback, no hang (tests have time limits), nothing
without end.
"""

import io
import json
import math
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from random import Random

from hpcfed import cli, main

Program = Callable[[Sequence[str]], int]
LONG = 150_000  # characters: 60 lines of 2,000 are the most, and their escapes
TINY = [  # a run of a quarter of a second
    "--clients",
    "2",
    "--models.mix",
    "mlp",
    "--models.d",
    "8",
    "--rounds",
    "1",
    "--data.partition",
    "iid",
    "--algorithm.contrastive",
    "false",
    "--local.augment",
    "none",
    "--log.picture",
    "false",
    "--quiet",
]


@dataclass(frozen=True)
class Answer:
    """What a program returned and wrote."""

    status: int
    out: str
    err: str


def ask(program: Program, words: Sequence[str]) -> Answer:
    """The program's answer to a command line, held against the claim."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = program(list(words))
        except SystemExit as leaving:  # of argparse, and of a rank that ends all
            status = leaving.code or 0
    answer = Answer(status, out.getvalue(), err.getvalue())
    check(answer)
    return answer


def check(answer: Answer) -> None:
    """The claim itself."""
    assert answer.status in (0, 2), answer.err[-3000:]
    assert "Traceback" not in answer.err
    assert len(answer.err) < LONG
    if answer.status == 2:
        assert answer.err.count("hpcfed: ") == 1 or answer.err.startswith("usage: "), answer.err[
            :3000
        ]


def run(*words: str) -> Answer:
    return ask(main.main, words)


def command(*words: str) -> Answer:
    return ask(cli.main, words)


def refused(answer: Answer, *parts: str) -> None:
    """The message has all these parts."""
    assert answer.status == 2, answer.out[-1000:]
    assert [part for part in parts if part not in answer.err] == [], answer.err[:3000]


def damaged(content: bytes, g: Random) -> bytes:
    """The bytes after one kind of accident: cut, bits flipped, numbers replaced, pieces moved,
    bytes lost.
    """
    kind, changed = g.randrange(6), bytearray(content)
    if kind == 0:
        return content[: g.randrange(len(content))]
    for _ in range(g.choice([1, 1, 1, 2, 4, 16])):
        i, j = g.randrange(len(changed)), g.randrange(len(changed))
        if kind == 1:
            changed[i] ^= 1 << g.randrange(8)
        elif kind == 2:
            changed[i] = g.choice([0, 255, 127, 128, 1])
        elif kind == 3:
            number = g.choice([-1, 0, 2**31 - 1, 2**40, i])
            changed[i : i + 8] = number.to_bytes(8, "little", signed=True)
        elif kind == 4:
            changed[i : i + 32] = changed[j : j + 32]
        else:
            del changed[i : i + g.randrange(1, 9)]
    return bytes(changed)


def toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, str):
        plain = (c if c >= " " and c not in '"\\\x7f' else f"\\u{ord(c):04x}" for c in value)
        return '"' + "".join(plain) + '"'
    return json.dumps(value)
