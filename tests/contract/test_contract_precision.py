"""run.precision = "bf16" over the registry: ranks, resuming and moves between ranks leave all bits.

The toy world's layers are so small that all of them would stay float32, so here only a layer's type
decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.algorithms import ALGORITHMS
from hpcfed.comm import Comm, Serial
from hpcfed.config.job import Job
from hpcfed.models import precision
from tests import saving
from tests.contract import toy
from tests.threads import spmd

ROUNDS = 2
FLAGS = ("--rounds", str(ROUNDS), "--run.precision", "bf16", "--training.engine", "eager")


@pytest.fixture(autouse=True, scope="module")
def all_sizes() -> Iterator[None]:
    """Layers of every size are computed in bfloat16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "SMALL", 0)
        yield


@pytest.mark.parametrize("method", ALGORITHMS)
def test_ranks_moves_and_a_resume_leave_the_bits_of_bf16(method: str, tmp_path: Path):
    job = toy.job(method, *FLAGS, *toy.different(method))
    with redirect_stderr(StringIO()):
        alone = toy.run(Serial(), job)
        spmd(3, lambda comm: save_first_round(comm, job, tmp_path))
        resumed = toy.run(Serial(), job, resume=tmp_path)
    assert toy.differences(replace(alone, rows=alone.rows[1:]), resumed) == []
    assert all(
        value.dtype != torch.bfloat16
        for weights in alone.weights.values()
        if (value := weights) is not None
    )


def save_first_round(comm: Comm, job: Job, folder: Path) -> None:
    """Make the first round, move clients between the ranks, and save."""
    rounds = toy.start(comm, job)
    rounds.step()
    rounds.balance.seconds = np.array([32, 16, 8, 4, 2, 1]) / np.array(rounds.fed.sizes)
    assert rounds.balance.rebalance()
    saving.save(rounds, folder)
