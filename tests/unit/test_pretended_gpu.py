"""The GPU that is not there refuses what a GPU refuses, and computes what the CPU computes."""

import numpy as np
import pytest
import torch

from hpcfed.comm import Serial, codec
from hpcfed.config.load import load
from hpcfed.core import payload
from hpcfed.core.averaging import mean_of
from hpcfed.core.params import Mean, Params
from hpcfed.federation import device_rows
from hpcfed.tasks.classification import Classification
from tests.contract import toy
from tests.contract.examination import WaitsOfSteps
from tests.pretended_gpu import GPU, LOCKED, WAITS, on_host, pretended_gpu

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
        (lambda x: x[torch.tensor([0])], 1),
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
        return len(rounds.fed.store.states.away)


def test_clients_that_do_not_fit_in_the_memory_that_the_job_gives_wait_on_the_host():
    assert states_away("1") == 0 and states_away("0") > 0


def tensors(n: int) -> list[torch.Tensor]:
    """Tensors of several types and shapes, one of them transposed, one without dimensions."""
    some = [X, X.double().t(), X.bfloat16(), torch.tensor(3), torch.zeros(0)]
    return [some[i % len(some)] + i for i in range(n)]


def mean_on_gpu(n: int) -> tuple[Params, int, int]:
    """Return a mean of n tensors on the host, the waits for it, and the page-locked buffers."""
    values = Params({str(i): torch.full((5, i + 1), i / 3) for i in range(n)})
    with pretended_gpu():
        on_gpu = values.map(lambda value: value.to(GPU))
        terms = [term for k in range(3) for term in Mean.of(on_gpu * (1 / (k + 3)), k + 1.0).terms]
        waits, locked = WAITS.count, LOCKED.count
        mean = mean_of(terms, on_gpu, "mean", Serial().sum, device_rows.place)
        assert all(value.device == GPU for value in mean.values())
        counts = WAITS.count - waits, LOCKED.count - locked
        return on_host(mean), *counts


def test_a_mean_of_many_tensors_waits_for_a_gpu_no_more_often_than_one_of_few():
    few, waits, locked = mean_on_gpu(2)
    many, *others = mean_on_gpu(40)
    assert others == [waits, locked] and locked == 2  # the message and the means
    values = Params({str(i): torch.full((5, i + 1), i / 3) for i in range(40)})
    terms = [term for k in range(3) for term in Mean.of(values * (1 / (k + 3)), k + 1.0).terms]
    want = mean_of(terms, values, "mean", Serial().sum)
    assert all(torch.equal(many[name], value) for name, value in want.items())
    assert all(torch.equal(few[name], want[name]) for name in few)


def test_a_message_of_many_tensors_leaves_a_gpu_with_one_wait_and_the_same_bytes(monkeypatch):
    value = {"list": tensors(7), "mean": Mean.of(Params(a=X), 2.0)}
    with pretended_gpu():
        on_gpu, synchronised = payload.on_device(value, GPU), []
        monkeypatch.setattr(torch.cuda, "synchronize", synchronised.append)
        waits, locked = WAITS.count, LOCKED.count
        assert codec.encode(on_gpu) == codec.encode(value)
        assert WAITS.count == waits and synchronised == [GPU] and LOCKED.count > locked


def test_what_exceeds_the_limit_of_page_locked_memory_leaves_a_gpu_without_it(monkeypatch):
    monkeypatch.setattr(payload, "LOCKED", 2 * X.nbytes)
    with pretended_gpu():
        on_gpu, locked = payload.on_device([X, X, X, X], GPU), LOCKED.count
        assert codec.encode(on_gpu) == codec.encode([X, X, X, X])
        assert LOCKED.count - locked == 2
        payload.host_buffer((100,), torch.float64, GPU)
        assert LOCKED.count - locked == 2


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_nothing_is_page_locked_on_a_cpu(method: str, monkeypatch):
    locked, empty = [], torch.empty

    def note(*shape, pin_memory: bool = False, **how):
        locked.append(pin_memory)
        return empty(*shape, **how)

    monkeypatch.setattr(torch, "empty", note)
    toy.run(Serial(), toy.job(method, "--rounds", "1", "--models.mix", "mlp"))
    assert locked and not any(locked)


CLIENTS, IMAGES = 100, 50  # pfl-research's task: 50 of many clients train in a round


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of 50 black images for each client."""
    path, n = tmp_path_factory.mktemp("images") / "images.npz", CLIENTS * IMAGES
    x, y = np.zeros((n, 28, 28), np.uint8), np.arange(n) % 10
    np.savez_compressed(path, x_train=x, y_train=y, x_test=x[:CLIENTS], y_test=y[:CLIENTS])
    return str(path)


@pytest.mark.parametrize(
    ("more", "engine"),
    [
        ((), "stacked"),
        (("--participation", "0.32"), "stacked"),
        (("--participation", "0.31"), "auto"),  # too few in a round
        (("--training.stack", "8"), "auto"),  # groups of too few
        (("--models.mix", "mlp"), "stacked"),
        (("--models.mix", "resnet18"), "auto"),
        (("--models.mix", "alexnet"), "auto"),
        (("--models.d", "2048"), "auto"),  # too many weights
        (("--local.batch", "50"), "auto"),  # too large steps
        (("--local.batch", "50", "--models.mix", "mlp"), "stacked"),
        (("--data.partition", "quantity"), "auto"),
        (("--training.engine", "eager"), "eager"),
    ],
)
def test_auto_stacks_many_small_equal_clients_on_a_gpu(
    more: tuple[str, ...], engine: str, images: str
):
    words = ["--algorithm.name", "fedavg", "--data.name", images, "--data.partition", "iid"]
    words += ["--clients", str(CLIENTS), "--participation", "0.5", "--models.mix", "cnn"]
    words += ["--local.optimiser", "sgd", "--local.batch", "10", "--run.device", "cuda", *more]
    with pretended_gpu():
        rounds = toy.start(Serial(), load(words, environ={}))
    assert rounds.fed.job.training.engine == engine


def negative_log_likelihood(task: object, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross-entropy without what C++ would make on the host here, for it sees no GPU."""
    return -output.log_softmax(1).gather(1, y[:, None]).mean()


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_clients_that_are_stacked_on_a_gpu_have_the_bits_of_stacked_ones_on_a_cpu(
    model: str, monkeypatch, capsys
):
    monkeypatch.setattr(Classification, "loss", negative_log_likelihood)
    words = ["--algorithm.name", "fedavg", "--data.name", "digits", "--data.partition", "iid"]
    words += ["--clients", "32", "--data.train_limit", "320", "--models.mix", model]
    words += ["--local.optimiser", "sgd", "--local.batch", "6", "--local.augment", "none"]
    words += ["--evaluate.every", "9", "--evaluate.before", "false"]

    def state(*more: str) -> Params:
        rounds = toy.start(Serial(), load([*words, *more], environ={}))
        assert rounds.fed.job.training.engine == "stacked"
        rounds.step()
        return on_host(rounds.state)

    want = state("--training.engine", "stacked")
    with pretended_gpu():
        got = state("--run.device", "cuda")
    assert "cannot be stacked" not in capsys.readouterr().err
    assert all(torch.equal(got[name], value) for name, value in want.items())


def test_small_clients_that_a_gpu_stacks_train_alone_on_a_cpu(images: str):
    words = ["--algorithm.name", "fedavg", "--data.name", images, "--data.partition", "iid"]
    words += ["--clients", str(CLIENTS), "--models.mix", "cnn", "--local.batch", "10"]
    rounds = toy.start(Serial(), load(words, environ={}))
    assert rounds.fed.job.training.engine == "auto"


def test_no_step_waits_for_the_mask_of_classes_that_a_client_lacks(monkeypatch):
    with pretended_gpu():
        steps = WaitsOfSteps(monkeypatch)
        flags = ("--models.mix", "cnn", "--local.batch", "4", "--participation", "1")
        toy.start(Serial(), toy.job("heterofl", *flags, "--run.device", "cuda")).step()
    assert steps.client is not None and steps.count == 0
