"""The GPU that is not there refuses what a GPU refuses, and computes what the CPU computes."""

import numpy as np
import pytest
import torch

from hpcfed.comm import Serial
from tests.contract import toy
from tests.pretended_gpu import GPU, WAITS, Away, on_host, pretended_gpu

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


def test_a_tensor_is_no_array_before_it_is_copied():
    with pretended_gpu():
        there = X.to(GPU)
        for read in (lambda: there.numpy(), lambda: np.asarray(there)):
            with pytest.raises(TypeError, match="can't convert cuda:0"):
                read()
        assert there.cpu().numpy().tolist() == there.tolist() == X.tolist()


def test_what_a_gpu_takes_of_the_host_is_taken():
    with pretended_gpu():
        there = X.to(GPU)
        assert (there + torch.tensor(1.0)).device == GPU  # a number
        assert there[torch.tensor([1])].tolist() == [[3.0, 4.0, 5.0]]  # places
        assert there.copy_(2 * X).tolist() == (2 * X).tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device=GPU),
        lambda: torch.tensor([1.0], device=GPU),
        lambda: torch.empty_like(X, device=GPU),
        lambda: torch.rand(2, device=GPU, generator=torch.Generator(GPU)),
        lambda: X.to(torch.zeros(1, device=GPU)),
        lambda: torch.nn.Linear(2, 2).to(GPU).weight,
    ],
)
def test_tensors_are_made_there(make):
    with pretended_gpu():
        made = make()
        assert isinstance(made, Away) and made.device == GPU and made.is_cuda
        assert not isinstance(made.cpu(), Away) and not isinstance(on_host([made])[0], Away)


def test_loss_and_gradient_are_those_of_the_cpu():
    def step(device) -> list:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.Dropout(), torch.nn.Linear(4, 2)
        )
        model = model.to(device)
        y = torch.tensor([0, 1], device=device)
        loss = torch.nn.functional.cross_entropy(model(X.to(device)), y)
        loss.backward()
        return [loss.item(), *(p.grad.tolist() for p in model.parameters())]

    want = step("cpu")
    with pretended_gpu():
        assert step(GPU) == want


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
def test_what_the_host_waits_for_is_counted(read, count: int):
    with pretended_gpu():
        there = X.to(GPU)
        before = WAITS.count
        read(there)
        assert WAITS.count - before == count


def test_nothing_is_pretended_afterwards():
    before = torch.cuda.is_available(), torch.Generator, torch.Tensor.to
    with pretended_gpu():
        assert torch.cuda.device_count() == 1
    assert (torch.cuda.is_available(), torch.Generator, torch.Tensor.to) == before
    assert type(X.to("cpu") + X) is torch.Tensor


def states_away(gib: str) -> int:
    """Return how many of six clients wait in the host's memory after a round."""
    with pretended_gpu():
        flags = ("--run.device", "cuda", "--run.device_resident", gib, "--models.mix", "mlp")
        rounds = toy.start(Serial(), toy.job("fedrep", *flags))
        rounds.step()
        return len(rounds.fed.store.kept.away)


def test_clients_that_do_not_fit_in_the_memory_that_the_job_gives_wait_on_the_host():
    assert states_away("1") == 0 and states_away("0") > 0
