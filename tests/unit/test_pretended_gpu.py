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
        lambda x, here: x + here,
        lambda x, here: torch.cat([x, here]),
        lambda x, here: x.masked_fill(here > 2, 0.0),
        lambda x, here: x @ here.T,
        lambda x, here: torch.where(x > 2, x, here),
        lambda x, here: x.add_(here),
    ],
)
def test_tensors_of_both_sides_do_not_meet(meet):
    with pretended_gpu(), pytest.raises(RuntimeError, match="must be on one device"):
        meet(X.to(GPU), X)


@pytest.mark.parametrize(
    ("read", "count"),
    [
        (lambda x: x.sum(), 0),
        (lambda x: x.sum().item(), 1),
        (lambda x: bool(x.sum() > 0), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: x[x > 1], 1),
        (lambda x: x[torch.tensor([0])], 0),
        (lambda x: x.copy_(X), 1),
        (lambda x: x.copy_(X, non_blocking=True), 0),
        (lambda x: X.to(GPU, non_blocking=True), 0),
        (lambda x: torch.tensor([1.0], device=GPU), 1),
        (lambda x: x.double(), 0),
    ],
)
def test_waits_of_the_host_are_counted(read, count: int):
    with pretended_gpu():
        x = X.to(GPU)
        before = WAITS.count
        read(x)
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
