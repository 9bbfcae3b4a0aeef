"""Where time goes: a phase's own time, without that of phases inside it."""

from hpcfed.comm import Serial
from hpcfed.machine import clock as module
from hpcfed.machine.clock import Clock
from tests.contract import toy


def test_the_rest_is_the_time_outside_inner_phases(monkeypatch):
    times = iter(
        [0.0, 1.0, 4.0, 10.0]
    )  # the rest begins, evaluation begins and ends, the rest ends
    monkeypatch.setattr(module, "perf_counter", lambda: next(times))
    clock = Clock()
    with clock.rest("server"), clock("evaluate"):
        pass
    assert clock.reset() == {"evaluate": 3.0, "server": 7.0} and clock.reset() == {}


def test_distillation_on_the_server_is_its_time_and_training_of_pooled_data_is_not():
    row = toy.start(
        Serial(), toy.job("feddf", "--models.mix", "mlp", "--participation", "1")
    ).step()[0]
    assert row["ranks/server"].sum() > 0 < row["ranks/train"].sum()
    central = toy.start(
        Serial(), toy.job("central", "--models.mix", "mlp", "--local.epochs", "20")
    ).step()[0]
    assert central["ranks/server"].sum() < central["ranks/train"].sum()
