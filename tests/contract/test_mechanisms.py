"""Every method runs with all that a job may add to a round at once: attackers among the clients, a
robust rule in the place of means, compression of uploads and downloads, and bfloat16. The bits are
the same on any ranks, after a resumption, and if clients move to other ranks.

If a method fails, leave out one mechanism after the other to find the cause.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Comm, Serial
from hpcfed.core.errors import ConfigError
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.rounds import Rounds
from hpcfed.models import precision
from tests import saving
from tests.contract import toy
from tests.contract.test_uploads import SILENT
from tests.threads import spmd

# scores after the second round; of six clients five take part, one or two of them attackers
SHORT = (
    *("--rounds", "3", "--evaluate.before", "false", "--evaluate.every", "2"),
    *("--local.batch", "32", "--participation", "0.8", "--attack.clients", "2,4"),
)
BF16 = ("--run.precision", "bf16", "--training.engine", "eager")
ATTACKS = (
    ("alie", "--attack.scale", "1"),
    ("sign-flip",),
    ("min-max",),
    ("fang",),
    ("label-flip",),
    ("noise",),
)
RULES = (  # by coordinates, by comparison, by weights, with memory of the server and of clients
    ("median",),
    ("multi-krum",),
    ("geometric-median", "--defence.bucket", "2"),
    ("centred-clipping", "--defence.clip", "0.1"),
    ("foolsgold",),
    ("trimmed-mean", "--defence.attackers", "0.34"),
)
CODECS = (  # biased and with feedback, or unbiased and random
    ("top-k", "--compression.down", "top-k"),
    ("qsgd", "--compression.down", "int8"),
    ("sign", "--compression.feedback", "ef21"),
    ("random-k", "--compression.down", "stc"),
    ("powersgd", "--compression.rank", "1"),
    ("eden", "--compression.down", "terngrad"),
)
REASONS = (  # of refusals
    "arrive one by one",
    "attack.by",
    "nothing is averaged",
    "nothing is sent",
    "the server of",
    "compares complete uploads",
    "counts clients alike",
    "adds several values to one mean",
)
PLAIN = ("fedavg", "fedprox", "fedclassavg", "fedproto", "fedmd", "scaffold", "fedbn")


LIMITS = (0, 50_000)  # multiply-adds; with 50,000 each model has layers on both sides


@pytest.fixture(autouse=True)
def low_layers(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every other method, layers of all sizes are computed in bfloat16, as far as their type
    allows it; with the others large ones alone.
    """
    monkeypatch.setattr(precision, "SMALL", LIMITS[list(ALGORITHMS).index(method) % len(LIMITS)])


def mechanisms(method: str) -> dict[str, tuple[str, ...]]:
    """The flags of each mechanism, by the part of the job; each pair of them is that of a few
    methods.
    """
    i = list(ALGORITHMS).index(method)
    block = i // 6
    return {
        "attack": ATTACKS[i % 6],
        "defence": RULES[block % 6],
        "compression": (*CODECS[(i + block) % 6], "--compression.min_size", "16"),  # toy models
    }


def start(method: str) -> Rounds:
    """Begin a run with all mechanisms that the method does not refuse."""
    parts = mechanisms(method)
    while True:
        flags = [word for part, by in parts.items() for word in (f"--{part}.by", *by)]
        short = SHORT if "attack" in parts else SHORT[:-2]
        try:
            return toy.start(
                Serial(), toy.job(method, *short, *BF16, *toy.different(method), *flags)
            )
        except ConfigError as error:
            refused = [part for part in parts if f"{part}.by" in str(error)]
            assert refused and any(reason in str(error) for reason in REASONS), error
            assert method not in PLAIN or "counts clients alike" in str(error)
            assert "compression" not in refused or method in SILENT
            parts = {part: by for part, by in parts.items() if part not in refused}


@pytest.mark.parametrize("method", ALGORITHMS)
def test_neither_ranks_nor_a_resumption_nor_moves_matter(method: str, tmp_path: Path):
    rounds = start(method)
    assert (rounds.fed.job.compression.by == "none") == (method in SILENT)
    rounds.step()
    saving.save(rounds, tmp_path)
    want = toy.outcome(rounds, [rounds.step()[0]])
    assert all(v.dtype == torch.float32 for v in want.weights.values() if v is not None)

    def on_rank(comm: Comm) -> toy.Outcome:
        second = toy.start(comm, rounds.fed.job)
        restore(second, tmp_path)
        second.balance.seconds = np.array([32, 16, 8, 4, 2, 1]) / np.array(second.fed.sizes)
        assert second.balance.rebalance()
        return toy.outcome(second, [second.step()[0]])

    for got in spmd(2, on_rank):
        assert toy.differences(got, want) == []
