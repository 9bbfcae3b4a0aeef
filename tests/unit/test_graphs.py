"""The graphed engine on the CPU, where calling the step again stands for replaying its capture; and
precision.

So what is tested is what decides, keeps, copies in and copies out; that a CUDA graph does what the
step did is torch's.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.algorithms.global_model.fedavg import FedAvg
from hpcfed.algorithms.public_data.alignment import add_alignment
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.core.rng import shuffled, torch_stream
from hpcfed.federation.federation import Federation
from hpcfed.machine import devices
from hpcfed.machine.transfer import Transfer
from hpcfed.models import precision
from hpcfed.training import engines, graphs
from hpcfed.training.adapt import fisher
from hpcfed.training.graphs import Graph
from hpcfed.training.local import LocalSteps, sgd
from hpcfed.training.recorded_step import RecordedStep
from hpcfed.training.server import fit, forward
from hpcfed.training.stacked_step import Stack
from tests.contract import toy
from tests.contract.conftest import small_model  # noqa: F401, a fixture

GRAPHED, EAGER = ("--training.engine", "graphed"), ("--training.engine", "eager")
DROPOUT = ("--models.mix", "small")


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list:
    """A capture on the CPU; lists what was captured."""
    recorded = []
    monkeypatch.setattr(graphs, "capture", toy.capture_on_cpu(recorded))
    return recorded


def federation(*flags: str) -> Federation:
    fed = toy.start(
        Serial(), toy.job("local", "--models.mix", "mlp", "--local.batch", "8", *flags)
    ).fed
    fed.participants.begin(0, list(range(fed.K)), True)
    return fed


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


HOW = {
    "adam": (),
    "kept moments": ("--local.keep_optimiser", "true"),
    "momentum and a schedule": (
        "--local.optimiser",
        "sgd",
        "--local.momentum",
        "0.9",
        "--local.schedule",
        "cosine",
        "--local.keep_optimiser",
        "true",
    ),
    "steps instead of epochs": ("--local.steps", "5"),
    "dropout and batch norm": DROPOUT,
}


@pytest.mark.parametrize("how", HOW)
def test_graphs_have_the_bits_of_eager_steps_over_clients_rounds_and_batches_of_any_size(
    how: str, captures: list
):
    def run(*engine: str) -> toy.Outcome:
        flags = ("--models.mix", "mlp", "--local.batch", "8", "--rounds", "3", *HOW[how], *engine)
        return toy.run(Serial(), toy.job("fedprox", *flags))

    assert toy.differences(run(*EAGER), run(*GRAPHED)) == []
    assert captures


def test_one_capture_serves_all_clients_of_an_architecture_and_rare_last_batches_need_none(
    captures: list,
):
    fed = federation(*GRAPHED)
    for k in (3, 4, 5):  # 17, 21 and 32 examples: last batches of 1, 5 and 8
        sgd(fed, fed.clients[k], 0, cross_entropy)
    captured = fed.store.skeletons["mlp", "clients"].captured.values()
    assert len(captures) == 1 == sum(isinstance(graph, Graph) for graph in captured)
    assert not any(isinstance(graph, RecordedStep) for graph in captured)


@pytest.mark.parametrize("most, graphs", [(32, 3), (1, 2)])
def test_sizes_of_last_batches_that_come_often_are_captured_up_to_a_number_of_sizes(
    most: int, graphs: int, captures: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engines, "MOST_SIZES", most)
    captured, eager = federation(*GRAPHED, *DROPOUT), federation(*EAGER, *DROPOUT)
    for t in range(engines.OFTEN // 2 + 1):
        for k in (3, 4):  # 17 and 21 examples: last batches of 1 and of 5
            for fed in (captured, eager):
                sgd(fed, fed.clients[k], t, cross_entropy, epochs=2)
        assert len(captures) == (graphs if 2 * (t + 1) > engines.OFTEN else 1)
    assert torch.equal(*(fed.clients[4].skeleton.flat for fed in (captured, eager)))


@pytest.mark.parametrize("k, captured", [(5, 1), (4, 0)])
def test_if_a_batch_is_larger_than_any_client_the_largest_clients_batch_counts_as_full(
    k: int, captured: int, captures: list
):
    fed = federation("--local.batch", "64", *GRAPHED)
    sgd(fed, fed.clients[k], 0, cross_entropy)
    assert len(captures) == captured


def test_a_step_that_cannot_be_captured_is_eager_and_the_run_says_so_once(
    capsys: pytest.CaptureFixture[str],
):
    def run(*engine: str) -> Tensor:
        fed = federation(*engine)
        for k in (4, 5):
            sgd(fed, fed.clients[k], 0, cross_entropy)
        return fed.clients[5].skeleton.flat.clone()

    assert torch.equal(run(*GRAPHED), run(*EAGER))
    err = capsys.readouterr().err
    assert (
        err.count(
            "cross_entropy cannot be captured (the device is not a GPU); it trains with the eager "
            "engine"
        )
        == 1
    )


class Pretended:
    """torch.cuda as far as a capture goes, whose `capture_end` throws as torch's does after a step
    that failed: the thread stays on the capture stream, the pool records on.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.default = self.current = self.stream(None)
        self.recording, self.pools, self.captures = set(), 0, 0
        self.index = 0  # the thread's current device
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "Stream", self.stream)
        monkeypatch.setattr(cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(cuda, "set_stream", lambda stream: setattr(self, "current", stream))
        monkeypatch.setattr(cuda, "stream", self.on)
        monkeypatch.setattr(cuda, "device", self.device)
        monkeypatch.setattr(cuda, "graph_pool_handle", self.pool)
        monkeypatch.setattr(cuda, "graph", self.graph)
        monkeypatch.setattr(cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end)
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *size, device=None: zeros(*size))
        graphs.place.cache_clear()

    def stream(self, device: object) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)

    def pool(self) -> int:
        self.pools += 1
        return self.pools

    def end(self, device: int, pool: int) -> None:
        if pool not in self.recording:
            raise RuntimeError("not recording")
        self.recording.remove(pool)

    @contextmanager
    def device(self, device: torch.device):
        before, self.index = self.index, device.index
        try:
            yield
        finally:
            self.index = before

    @contextmanager
    def on(self, stream: SimpleNamespace):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: object, pool: int, stream: SimpleNamespace, capture_error_mode: str):
        if pool in self.recording:
            raise RuntimeError("already recording")
        self.recording.add(pool)
        before, self.current = self.current, stream
        try:
            yield
        except ValueError as error:
            raise RuntimeError("capture_end: the capture is invalid") from error
        self.recording.remove(pool)
        self.captures += 1
        self.current = before


def test_a_capture_that_fails_leaves_the_stream_as_it_was_and_the_next_one_captures(monkeypatch):
    cuda, device = Pretended(monkeypatch), torch.device("cuda", 1)
    streams, calls = [], []

    def bad() -> None:
        calls.append(1)
        if len(calls) > graphs.WARM:
            raise ValueError("the step asks the host")

    with pytest.raises(RuntimeError, match="the capture is invalid"):
        graphs.capture(bad, device)
    assert cuda.current is cuda.default and not cuda.recording
    healed = (
        cuda.captures
    )  # small ones: of each pool, and so that torch's generator is usable again
    graphs.capture(lambda: streams.append(cuda.current), device)
    assert cuda.current is cuda.default and not cuda.recording
    assert (healed, cuda.captures, cuda.pools) == (2, 3, 2)
    assert all(stream is not cuda.default for stream in streams)


def test_a_pool_has_a_graph_that_outlives_those_of_a_run(monkeypatch):
    """Without one torch refuses the first capture of a second run in one process."""
    cuda, device = Pretended(monkeypatch), torch.device("cuda", 1)
    graphs.capture(lambda: None, device)
    *_, keeper = graphs.place(device)
    assert cuda.captures == 2 and keeper is graphs.place(device)[-1]


def test_every_stream_is_entered_and_left_on_the_device_that_it_is_of(monkeypatch):
    """Elsewhere torch sets the thread to GPU 0 as it leaves one, which takes a context there."""
    cuda, device, devices = Pretended(monkeypatch), torch.device("cuda", 1), []
    on = cuda.on

    @contextmanager
    def noted(stream: SimpleNamespace):
        devices.append(cuda.index)
        with on(stream):
            yield

    monkeypatch.setattr(torch.cuda, "stream", noted)
    monkeypatch.setattr(torch, "empty_like", lambda tensor, **how: torch.zeros(2))
    graphs.capture(lambda: devices.append(cuda.index), device)
    ferry = Transfer(device)
    assert torch.equal(ferry.up(torch.ones(2)), torch.ones(2))
    assert torch.equal(ferry.down(torch.ones(2)), torch.ones(2))
    assert set(devices) == {1} and len(devices) == 1 + graphs.WARM + 1 + 2 and cuda.index == 0


def test_a_warm_up_that_fails_leaves_the_stream_as_it_was(monkeypatch):
    cuda = Pretended(monkeypatch)

    def bad() -> None:
        raise ValueError("out of memory")

    with pytest.raises(ValueError, match="out of memory"):
        graphs.capture(bad, torch.device("cuda", 1))
    assert cuda.current is cuda.default and cuda.captures == cuda.pools == 1  # the pool's own


def test_a_step_with_a_tensor_of_another_device_is_not_captured(captures: list):
    optimiser = SimpleNamespace(skeleton=SimpleNamespace(flat=torch.zeros(1)))
    with pytest.raises(RuntimeError, match="another device"):
        Graph(None, optimiser, [torch.zeros((), device="meta")], [])
    assert captures == []


@pytest.mark.parametrize("rounds, wanted", [("1", False), ("500", True)])
def test_on_a_gpu_auto_captures_if_there_are_enough_steps_of_any_length(rounds: str, wanted: bool):
    fed = federation("--rounds", rounds)
    steps, loss = LocalSteps(fed, fed.clients[5], 0), FedAvg().loss
    assert engines.worth(steps, loss, gpu=True) == wanted
    assert not engines.worth(steps, loss, gpu=False)
    assert not engines.worth(steps, cross_entropy, gpu=True)  # a user's own


def test_a_graph_whose_first_replay_differs_from_the_eager_step_is_not_used(monkeypatch, capsys):
    def capture(step, device):
        value = step()
        return lambda: value  # which computes nothing again

    monkeypatch.setattr(graphs, "capture", capture)
    fed, eager = federation(*GRAPHED), federation(*EAGER)
    for other in (fed, eager):
        sgd(other, other.clients[5], 0, cross_entropy)
    assert torch.equal(fed.clients[5].skeleton.flat, eager.clients[5].skeleton.flat)
    assert "cannot be captured (its replay has other bits" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["fedavg", "pfedme", "perfedavg", "scaffold", "fedsgd"])
def test_precision_reaches_every_way_to_train_and_float32_changes_nothing(
    method: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(precision, "SMALL", 0)
    flags = ("--rounds", "1", "--models.mix", "mlp", "--local.optimiser", "sgd", *EAGER)
    plain, same, other = (
        toy.run(Serial(), toy.job(method, *flags, *("--run.precision", name) * bool(name)))
        for name in ("", "float32", "bf16")
    )
    assert toy.differences(plain, same) == []
    assert any("state" in name or "weights" in name for name in toy.differences(plain, other))
    assert all(v.dtype != torch.bfloat16 for v in other.state.values() if isinstance(v, Tensor))


@pytest.mark.parametrize("engine", ["traced", "graphed"])
def test_bf16_has_the_same_bits_in_every_engine(
    engine: str,
    captures: list,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(precision, "SMALL", 0)
    flags = (
        "--models.mix",
        "mlp,cnn",
        "--run.precision",
        "bf16",
        "--rounds",
        "2",
        "--training.engine",
    )
    eager, other = (
        toy.run(Serial(), toy.job("fedclassavg", *flags, name)) for name in ("eager", engine)
    )
    assert toy.differences(eager, other) == []
    assert "cannot be recorded" not in capsys.readouterr().err


def test_stacked_clients_train_in_bf16_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Products for several clients at once may be rounded to other bfloat16 values, no worse ones.

    How much they differ depends on the processor's instructions for bfloat16.
    """
    monkeypatch.setattr(precision, "SMALL", 0)
    steps, step = [], Stack.step

    def count(stack: Stack, *arguments: object) -> object:
        steps.append(arguments)
        return step(stack, *arguments)

    monkeypatch.setattr(Stack, "step", count)
    flags = (
        *("--models.mix", "mlp", "--rounds", "1", "--clients", "4", "--data.partition", "iid"),
        *("--local.optimiser", "sgd", "--training.stack", "4", "--training.engine"),
    )
    eager, low, stacked = (
        toy.run(Serial(), toy.job("fedavg", *flags, engine, "--run.precision", name)).state
        for engine, name in (("eager", "float32"), ("eager", "bf16"), ("stacked", "bf16"))
    )
    assert steps and "cannot" not in capsys.readouterr().err
    for name in eager:
        rounding, stacked_rounding = (
            torch.dist(values[name], eager[name]) for values in (low, stacked)
        )
        assert 0 < stacked_rounding < 1.5 * rounding


@pytest.mark.parametrize("small, low", [(0, torch.bfloat16), (1e15, torch.float32)])
def test_on_the_server_large_layers_are_computed_in_the_runs_precision_and_formulas_in_float32(
    small: float, low: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(precision, "SMALL", small)
    fed, types = federation("--run.precision", "bf16", *EAGER), []
    module = fed.module("mlp")
    module.model.body[1].register_forward_hook(lambda *values: types.append(values[2].dtype))

    def loss(params: Params, rows: np.ndarray) -> Tensor:
        logits = forward(fed, module, params, torch.ones(len(rows), *toy.SHAPE))
        types.extend([logits.dtype, (logits @ logits.T).dtype])
        return logits.sum()

    start = module.items(lambda name: True).clone()
    fit(fed, start, loss, lambda rows: rows, 4, "test", size=4, lr=0.1)
    assert types == [low, torch.float32, torch.float32]


def test_the_fisher_information_is_computed_in_the_runs_precision(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(precision, "SMALL", 0)
    source = str(toy.folder() / "public.npz")
    flags = ("--data.public", "16", "--data.public_source", source, "--run.precision")
    both = []
    for name in ("float32", "bf16"):
        fed = federation(*flags, name, *EAGER)
        both.append(fisher(fed, fed.clients[5], 0))
    assert any(not torch.equal(both[0][name], both[1][name]) for name in both[0])


def test_a_distance_of_representations_is_computed_in_float32_whatever_the_precision():
    fed, dtypes = federation("--run.precision", "bf16", *EAGER), []
    client = fed.clients[5]

    def distance(z: Tensor) -> Tensor:
        dtypes.append((z.dtype, (z.T @ z).dtype))
        return z.sum()

    loss = add_alignment(fed, client, cross_entropy, client.train, distance, 1.0)
    sgd(fed, client, 0, loss)
    assert set(dtypes) == {(torch.float32, torch.float32)}


def test_precision_is_part_of_a_jobs_identity_and_the_engine_is_not():
    plain, bf16 = (
        toy.job("fedavg", "--run.precision", name).identity() for name in ("float32", "bf16")
    )
    assert plain != bf16 and plain == toy.job("fedavg", *GRAPHED).identity()


def test_tf32_without_a_gpu_is_refused():
    with pytest.raises(
        ConfigError, match="run.precision = 'tf32' is of GPUs, but the device is a CPU"
    ):
        devices.choose("cpu", None, "tf32")


def test_an_order_from_a_gpus_generator_depends_on_its_state_and_takes_no_draw_from_it():
    def gpu(seed: int, offset: int) -> SimpleNamespace:
        state = torch.tensor([seed, offset], dtype=torch.int64).view(torch.uint8)
        return SimpleNamespace(device=torch.device("cuda", 0), get_state=lambda: state)

    orders = [shuffled(20, gpu(seed, offset)) for seed, offset in ((1, 0), (1, 0), (1, 4), (2, 0))]
    assert orders[0] == orders[1] and len(set(map(tuple, orders))) == 3
    assert all(
        sorted(order) == list(range(20))
        for order in (*orders, shuffled(20, torch_stream(0, "test")))
    )
