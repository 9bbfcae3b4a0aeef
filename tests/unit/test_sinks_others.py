"""Weights & Biases and MLflow as sinks: against fakes that keep what they are given, and MLflow
itself where it is.
"""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hpcfed.config.sections import Log
from hpcfed.report.sinks.logs import Logs
from hpcfed.storage import names
from tests.spoken import HEADER, LOSSES, row, spoken


class FakeWandB(ModuleType):
    """Runs by id: how each was begun, what was logged, how it ended."""

    def __init__(self):
        super().__init__("wandb")
        self.begun, self.logged, self.ended = [], [], []
        self.Settings = SimpleNamespace

    def init(self, **how):
        self.begun.append(how | {"id": how["id"] or f"id{len(self.begun)}"})
        run = self.begun[-1]["id"]
        log = lambda numbers, step: self.logged.append((run, step, numbers["loss/train"]))  # noqa: E731
        return SimpleNamespace(
            id=run, log=log, finish=lambda exit_code: self.ended.append(exit_code)
        )


@pytest.fixture
def wandb(monkeypatch) -> FakeWandB:
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandB())
    return fake


def test_a_killed_wandb_log_is_rewritten_with_all_rounds(tmp_path, wandb):
    log = Logs(Log(wandb=True), tmp_path, pytest.fail)
    log.begin(HEADER, 0, row)
    for t in (1, 2, 3):
        log.round(t, row(t))  # and no end
    spoken("wandb", tmp_path, [(2, [3, 4], "finished")])
    assert [(run, t) for run, t, _ in wandb.logged[3:]] == [
        ("id1", 1),
        ("id1", 2),
        ("id1", 3),
        ("id1", 4),
    ]


def test_wandb_is_offline_in_the_runs_folder_unless_the_environment_says_otherwise(
    tmp_path, wandb, monkeypatch
):
    spoken("wandb", tmp_path, [(0, [1], "finished")])
    monkeypatch.setenv("WANDB_MODE", "online")
    spoken("wandb", tmp_path, [(0, [1], "finished")])
    assert [how["mode"] for how in wandb.begun] == ["offline", "online"]
    assert (wandb.begun[0]["dir"], wandb.begun[0]["name"]) == (str(tmp_path), tmp_path.name)
    assert wandb.begun[0]["config"] == HEADER["job"] and wandb.begun[0]["settings"].console == "off"


def test_a_new_run_in_the_same_folder_has_a_new_id(tmp_path, wandb):
    spoken("wandb", tmp_path, [(0, [1, 2], "failed"), (0, [1, 2], "finished")])
    assert [(run, t) for run, t, _ in wandb.logged] == [
        ("id0", 1),
        ("id0", 2),
        ("id1", 1),
        ("id1", 2),
    ]


class FakeMlflow:
    """MlflowClient, as far as the sink uses it. kept: metrics and parameters of all runs, and how
    each ended.
    """

    kept: dict = {}  # noqa: RUF012

    def __init__(self, uri):
        self.kept["uri"] = uri

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return "0"

    def create_run(self, experiment, run_name):
        run = f"run{len(self.kept['runs'])}"
        self.kept["runs"].append(run)
        return SimpleNamespace(info=SimpleNamespace(run_id=run))

    def update_run(self, run, status):
        assert run in self.kept["runs"] and status == "RUNNING"

    def get_metric_history(self, run, name):
        return [m for owner, m in self.kept["metrics"] if owner == run and m.key == name]

    def log_batch(self, run, metrics=(), params=()):
        assert len(params) <= 100
        self.kept["metrics"] += [(run, m) for m in metrics]
        self.kept["params"] += [(p.key, p.value) for p in params]

    def set_terminated(self, run, status):
        self.kept["ended"].append((run, status))


@pytest.fixture
def mlflow(monkeypatch) -> dict:
    """What the fake keeps."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)  # noqa: E731
    entities = {"Metric": metric, "Param": lambda key, value: SimpleNamespace(key=key, value=value)}
    modules = {
        "mlflow": {},
        "mlflow.tracking": {"MlflowClient": FakeMlflow},
        "mlflow.entities": entities,
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(FakeMlflow, "kept", {"runs": [], "metrics": [], "params": [], "ended": []})
    return FakeMlflow.kept


def test_mlflow_uses_the_address_of_the_environment(tmp_path, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    spoken("mlflow", tmp_path, [(0, [1], "finished")])
    assert mlflow["uri"] == "http://127.0.0.1:1"


def test_mlflow_itself_holds_each_round_once(tmp_path: Path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    spoken("mlflow", tmp_path)
    client = MlflowClient(names.sink_folder(tmp_path, "mlflow").as_uri())
    run = client.get_run(json.loads(names.sink_file(tmp_path, "mlflow").read_text())["id"])
    history = client.get_metric_history(run.info.run_id, "loss/train")
    assert sorted((m.step, m.value) for m in history) == sorted(LOSSES.items())
    assert (run.info.status, run.data.params["algorithm.name"]) == ("FINISHED", "local")


def test_wandb_continues_offline_under_the_same_id(tmp_path: Path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    spoken("wandb", tmp_path)
    state = json.loads(names.sink_file(tmp_path, "wandb").read_text())
    parts = sorted(tmp_path.glob(f"wandb/offline-run-*/run-{state['id']}.wandb"))
    assert (state["rounds"], len(parts)) == (4, 2)
