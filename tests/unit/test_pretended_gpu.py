"""The GPU that is not there refuses what a GPU refuses, and computes what the CPU computes."""

import pytest
import torch

from hpcfed.comm import Serial
from tests.contract import toy
from tests.pretended_gpu import GPU, WAITS, pretended_gpu

X = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    "meet",
    [
        lambda there, here: there + here,
        lambda there, here: torch.cat([there, here]),
        lambda there, here: there.masked_fill(here > 2, 0.0),
        lambda there, here: there @ here.T,
        lambda there, here: torch.where(there > 2, there, here),
        lambda there, here: there.add_(here),
    ],
)
def test_tensors_of_both_sides_do_not_meet(meet):
    with pretended_gpu(), pytest.raises(RuntimeError, match="must be on one device"):
        meet(X.to(GPU), X)


@pytest.mark.parametrize(
    ("read", "count"),
    [
        (lambda there: there.sum(), 0),
        (lambda there: there.sum().item(), 1),
        (lambda there: bool(there.sum() > 0), 1),
        (lambda there: there.cpu(), 1),
        (lambda there: there.tolist(), 1),
        (lambda there: there[there > 1], 1),
        (lambda there: there[torch.tensor([0])], 0),
        (lambda there: there.copy_(X), 1),
        (lambda there: there.copy_(X, non_blocking=True), 0),
        (lambda there: X.to(GPU, non_blocking=True), 0),
        (lambda there: torch.tensor([1.0], device=GPU), 1),
        (lambda there: there.double(), 0),
    ],
)
def test_waits_of_the_host_are_counted(read, count: int):
    with pretended_gpu():
        there = X.to(GPU)
        before = WAITS.count
        read(there)
        assert WAITS.count - before == count


def states_away(gib: str) -> int:
    """Return how many of six clients wait in the host's memory after a round."""
    with pretended_gpu():
        flags = ("--run.device", "cuda", "--run.device_resident", gib, "--models.mix", "mlp")
        rounds = toy.start(Serial(), toy.job("fedrep", *flags))
        rounds.step()
        return len(rounds.fed.store.kept.away)


def test_clients_that_do_not_fit_in_the_memory_that_the_job_gives_wait_on_the_host():
    assert states_away("1") == 0 and states_away("0") > 0
