"""Runs whose models predict one class alone say so, also when they measure accuracy alone."""

import numpy as np
import pytest
import torch

from hpcfed.main import main
from hpcfed.results.one_class import one_class
from hpcfed.storage.record import Record, load
from hpcfed.tasks.classification import Classification

NAN = np.nan
EVENTS, CLIENTS = 200, 4


@pytest.mark.quick
@pytest.mark.parametrize("metrics", [("accuracy",), ("accuracy", "kappa")])
def test_scores_name_the_class_that_all_batches_predict(metrics):
    def predicted(*batches: list[int]) -> float:
        eye = torch.eye(3)
        pairs = [
            (eye[classes], torch.zeros(len(classes), dtype=torch.int64)) for classes in batches
        ]
        return Classification().score(pairs, metrics)[2]

    assert predicted([2, 2], [2]) == 2 and predicted([0]) == 0
    assert np.isnan([predicted([2, 2], [1]), predicted([0, 1], [0])]).all()


def record(one_class: list[float], accuracy: list[float], **more: object) -> Record:
    names = ["no", "yes"]
    header = {"metrics": ["accuracy"], "classes": names, "architectures": ["a"] * len(accuracy)}
    columns = {
        "clients/accuracy": np.array([accuracy, [NAN] * len(accuracy)]),
        "clients/one_class": np.array([one_class, [NAN] * len(accuracy)]),
    }
    return Record(header | more, {}, columns, 2)


@pytest.mark.quick
def test_the_warning_names_the_class_or_the_number_of_clients():
    notice = "all predictions are one class"
    assert one_class(record([0, 0], [0.9, 1])).startswith(f"{notice} (no), so that accuracy is")
    assert one_class(record([1, 1], [0.1, 0])).startswith(f"{notice} (yes)")
    assert one_class(record([1, NAN], [0.1, NAN])).startswith(f"{notice} (yes)")
    some = "the models of 1 client predict one class for all test examples"
    assert one_class(record([0, NAN], [0.9, 0.8])) == some
    assert one_class(record([0, 1], [0.9, 1])) == some  # the second client has no other class
    for nothing in (record([NAN, NAN], [0.9, 0.9]), record([1, 1], [1, 1])):
        assert one_class(nothing) == ""
    assert one_class(record([0, NAN], [0.9, 0.8], classes=["no", "yes", "other"])) == ""


@pytest.mark.quick
def test_a_global_model_that_predicts_one_class_is_reported_beside_clients_models():
    run = record([NAN, NAN], [0.9, 0.9])
    run.arrays["final/one_class_received"] = np.array([0.0, 0.0])
    run.arrays["final/accuracy_received"] = np.array([0.8, 0.7])
    assert one_class(run).startswith("all predictions of the global model are one class (no)")


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_table_with_one_rare_class_ends_with_a_warning(method, tmp_path, capsys):
    """5 % of the examples are events, which no column tells apart; accuracy alone is measured."""
    x = np.random.default_rng(0).normal(size=(EVENTS, 3))
    lines = [
        f"{a:.3f},{b:.3f},{c:.3f},{'yes' if i % 20 == 0 else 'no'}" for i, (a, b, c) in enumerate(x)
    ]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["a,b,c,event", *lines]))
    flags = f"--algorithm.name {method} --clients {CLIENTS} --rounds 2 --models.mix mlp"
    words = [*flags.split(), "--data.name", str(table), "--columns.label", "event"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    record = load(tmp_path / "run")
    assert record.header["metrics"] == ["accuracy"]
    assert (record.column("clients/one_class")[-1] == 0).all()
    assert "warning: all predictions are one class (no)" in " ".join(
        capsys.readouterr().out.split()
    )
