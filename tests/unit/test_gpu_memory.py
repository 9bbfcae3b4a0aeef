"""What does not fit a rank's share of a GPU is refused before it trains; no GPU is needed to test
that.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hpcfed import models
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.shapes import Modality, Shapes
from hpcfed.engine import memory_check, run, setup
from hpcfed.engine.decide import world
from hpcfed.engine.memory_check import (
    CONTEXT,
    GIB,
    Need,
    estimate_activations,
    measure_step,
    need,
    refuse,
)
from hpcfed.engine.rounds import Rounds
from hpcfed.machine.error_messages import MemoryFault
from hpcfed.models import MODELS
from hpcfed.training import engines
from hpcfed.training.local import LocalSteps
from tests.contract import toy
from tests.threads import spmd

LARGE = Need(modules=2 * GIB, examples=GIB, resting=GIB, steps={"resnet18": 4 * GIB, "cnn": GIB})


def start(kind: str = "mlp") -> Rounds:
    return toy.start(Serial(), toy.job("fedavg", "--models.mix", kind))


def test_a_rank_needs_its_permanent_memory_and_its_largest_step():
    assert LARGE.total == CONTEXT + 8 * GIB
    refuse(LARGE, LARGE.total, 64)


def test_memory_of_graphs_includes_moments_and_their_pool():
    graphed = replace(LARGE, moments=GIB)
    assert graphed.graphs == 2 * GIB and graphed.total == LARGE.total + 2 * GIB
    assert replace(graphed, steps={"cnn": GIB}).graphs == GIB
    with pytest.raises(ConfigError) as error:
        refuse(graphed, LARGE.total, 64)
    assert "2.00 for graphs" in str(error.value)
    assert "training.engine = 'eager' needs no memory for graphs" in str(error.value)


@pytest.mark.parametrize(("share", "graphs"), [(LARGE.total + GIB, True), (LARGE.total, False)])
def test_auto_drops_graphs_if_only_they_do_not_fit(share, graphs, capsys, monkeypatch):
    """The job stays as it is: whether clients train as one, with other bits, hangs on it."""
    fed = start().fed
    fed.gpu.memory = share
    memory_check.settle(replace(LARGE, moments=GIB, steps={"resnet18": 4 * GIB}), fed)
    assert fed.job.training.engine == "auto"
    assert ("steps are eager" in capsys.readouterr().err) != graphs
    monkeypatch.setattr(engines, "worth", lambda steps, loss, gpu: True)
    with LocalSteps(fed, fed.clients[5], 0) as steps:
        fed.device = torch.device("cuda", 0)
        engine = engines.engine(steps, fed.job.algorithm.loss)
        fed.device = torch.device("cpu")
    assert isinstance(engine, engines.Graphed) == graphs


@pytest.mark.parametrize(
    ("flags", "copies"),
    [
        (("--local.optimiser", "sgd"), 1),
        (("--local.optimiser", "sgd", "--local.momentum", "0.9"), 2),
        (("--local.optimiser", "adam"), 3),
    ],
)
def test_moments_count_of_every_optimiser_and_of_each_client_that_keeps_them(flags, copies):
    job = toy.job("local", "--models.mix", "mlp", *flags)
    fed = toy.start(Serial(), job).fed
    one = 4 * fed.store.layout("mlp").size
    assert need(world(job, Serial()), fed).modules == copies * one
    assert need(world(job, Serial()), fed).resting == 6 * one
    if copies > 1:
        keeps = toy.job("local", "--models.mix", "mlp", "--local.keep_optimiser", "true", *flags)
        fed = toy.start(Serial(), keeps).fed
        assert need(world(keeps, Serial()), fed).resting == 6 * copies * one


def test_too_large_jobs_are_refused_with_the_numbers_and_a_batch_that_may_fit():
    with pytest.raises(ConfigError) as error:
        refuse(LARGE, 6.5 * GIB, 64)  # 2 GiB are left for a step of 4
    assert "at least 8.50 GiB, its share of the GPU is 6.50 GiB" in str(error.value)
    assert "4.00 for a step of resnet18 at local.batch = 64" in str(error.value)
    assert "local.batch = 32 may fit" in str(error.value)


def test_the_estimate_is_what_autograd_keeps():
    model = nn.Sequential(nn.Linear(8, 4), nn.Sigmoid(), nn.Linear(4, 2))
    estimate = estimate_activations(
        lambda n: model(torch.zeros(n, 8)).sum(), model.parameters(), 2, 10
    )
    assert (
        estimate == 10 * (8 + 4) * 4
    )  # the input and the sigmoid's output, float32; weights are not counted


def test_a_step_is_measured_by_the_allocator_from_its_start_to_its_peak(monkeypatch):
    fed = start().fed
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 5000)
    assert measure_step(fed, lambda: None, "small") == 4000

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(MemoryFault, match="a first step of small: out of memory"):
        measure_step(fed, fail, "small")


def modal(name: str) -> bool:
    return MODELS[name].modal


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_a_first_step(name):
    shape, vocabulary = ((4,), 9) if MODELS[name].text else ((3, 32, 32), 0)
    shape = (5,) if MODELS[name].table else shape
    shape = (16, 16, 16) if name.endswith("-server") else shape
    shape = Shapes([Modality("moved", (3, 8)), Modality("said", (4,), 9)]) if modal(name) else shape
    fed = start().fed
    fed.store.form, fed.store.vocabulary = (shape, 4, 16), vocabulary
    fed.store.build = lambda kind: models.build(kind, shape, 4, 16, False, vocabulary)
    assert memory_check.peak(fed, name) > 0


@pytest.mark.parametrize("method", ["fedavg", "fedclassavg", "fml", "heterofl"])
def test_a_run_is_refused_on_all_ranks_before_it_makes_a_folder(method, monkeypatch, tmp_path):
    job = toy.job(method, "--models.mix", "mlp", "--out", str(tmp_path / "run"))
    real = setup.choose_device
    monkeypatch.setattr(
        setup, "choose_device", lambda job, comm: replace(real(job, comm), share=1e6)
    )

    def refused(comm) -> str:
        with pytest.raises(ConfigError, match="not enough GPU memory") as error:
            run.run(job, comm)
        return str(error.value)

    first, second = spmd(2, refused)
    assert first == second and not (tmp_path / "run").exists()


def test_measuring_changes_no_weights_and_no_draws():
    def outcome(measure: bool) -> toy.Outcome:
        going = start("alexnet")  # which has dropout
        if measure:
            assert need(world(going.fed.job, Serial()), going.fed).total > CONTEXT
        return toy.outcome(going, [going.step()[0]])

    assert toy.differences(outcome(True), outcome(False)) == []
