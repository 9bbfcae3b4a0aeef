"""Changed data: which array is named, when a resume is refused, and who says it afterwards."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hpcfed
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.data.dataset import Reading
from hpcfed.data.files import from_arrays
from hpcfed.engine.changed_data import changed, digests
from hpcfed.report.table import table

X = np.random.default_rng(0).integers(0, 256, (60, 6, 6), np.uint8)
ARRAYS = {"x_train": X, "y_train": np.arange(60) % 2, "users_train": np.arange(60) // 10}
ARRAYS |= {"x_test": X[:20], "y_test": np.arange(20) % 2, "users_test": np.arange(20) // 4}


def data(**arrays):
    return from_arrays("arrays", ARRAYS | arrays, Reading())


def test_a_digest_names_the_array_that_has_changed():
    before = digests(data())
    assert changed(before, digests(data())) == [] == changed({}, before)
    one = X.copy()
    one[59, 5, 5] ^= 1
    for name, array in (("x", one), ("y", ARRAYS["y_train"][::-1]), ("users", np.arange(60) // 6)):
        assert changed(before, digests(data(**{f"{name}_train": array}))) == [f"train {name}"]
    assert changed(before, digests(data(x_test=X[1:21]))) == ["test x"]
    fewer = {name: array[:50] for name, array in ARRAYS.items()}
    assert changed(before, digests(data(**fewer))) == ["train y", "train users", "train x"]
    without = digests(replace(data(), train=replace(data().train, users=None)))
    assert changed(before, without) == changed(without, before) == ["train users"]
    public = digests(data(), data())
    assert changed(public, digests(data(), data(x_train=one))) == ["public train x"]
    assert changed(public, digests(data(), data(x_test=X[1:21]))) == []


def test_changed_data_are_refused_on_resume_unless_the_job_accepts_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    def go_on(rounds: int, x: np.ndarray, **more) -> hpcfed.Run:
        np.savez("own.npz", **ARRAYS | {"x_train": x})
        job = {"models.mix": ["mlp"], "models.d": 8, "data.name": "own.npz", "quiet": True}
        more = {"data.spread": 1.0, "data.partition": "quantity", "out": "r", "resume": True} | more
        return hpcfed.run(job, algorithm="fedavg", clients=2, rounds=rounds, **more)

    assert len(go_on(1, X)) == 1 and len(go_on(2, X, **{"data.label": "Mine"})) == 2
    with pytest.raises(ConfigError, match=r"own.npz have changed since r began \(train x\), so"):
        go_on(3, X[::-1])
    with pytest.raises(CheckpointError, match="is of another job:\n *data.spread: 2"):
        go_on(3, X[::-1], **{"data.spread": 2.0})
    assert "own have changed" not in str(table([Path("r")]))
    capsys.readouterr()
    assert len(go_on(3, X[::-1], own_changed=True)) == 3
    assert "own.npz have changed since r began (train x)" in capsys.readouterr().err
    assert len(go_on(4, X[::-1])) == 4
    assert "the data own have changed between or within the runs" in str(table([Path("r")]))


FILES = {  # a file by the field that names it, as it was, as it is later, and what goes with it
    "system.file": (
        "client,speed,bandwidth,latency,availability\n0,1e9,1e6,0,1\n1,1e9,1e6,0,1\n",
        "client,speed,bandwidth,latency,availability\n0,1e9,1e6,0,1\n1,1e9,1e6,7,1\n",
        {"system.distribution": "file"},
    ),
    "system.measured": (
        "client,seconds,examples\n0,1,10\n",
        "client,seconds,examples\n0,2,10\n",
        {"system.distribution": "measured"},
    ),
    "system.trace": (
        "client,time,available,speed\n0,0,1,1e9\n",
        "client,time,available,speed\n0,0,1,1e9\n0,9,1,1e8\n",
        {},
    ),
    "edges.file": ("client,edge\n0,0\n1,1\n", "client,edge\n0,1\n1,1\n", {"edges.number": 2}),
}


@pytest.mark.parametrize("field", FILES)
def test_a_changed_file_of_the_system_or_of_edges_is_refused_on_resume(
    field: str, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before, after, more = FILES[field]
    job = {"models.mix": ["mlp"], "models.d": 8, "data.name": "own.npz", "quiet": True}
    job |= {"evaluate.every": 9, field: "file.csv", **more}
    np.savez("own.npz", **ARRAYS)

    def go_on(rounds: int, text: str, **more: object) -> hpcfed.Run:
        Path("file.csv").write_text(text)
        more = {"algorithm": "fedavg", "clients": 2, "out": "r", "resume": True} | more
        return hpcfed.run(job, rounds=rounds, **more)

    go_on(1, before)
    head, *lines = before.splitlines()
    go_on(2, "\n".join([head, *reversed(lines), ""]))  # which says the same
    with pytest.raises(ConfigError, match=f"{field}: file.csv has changed since r began, so"):
        go_on(3, after)
    with pytest.raises(CheckpointError, match="is of another job:\n *system.dropout: 0.5"):
        go_on(3, after, **{"system.dropout": 0.5})
    assert len(go_on(3, after, own_changed=True)) == 3
    assert f"{field}: file.csv has changed since r began" in capsys.readouterr().err
    assert len(go_on(4, after)) == 4
