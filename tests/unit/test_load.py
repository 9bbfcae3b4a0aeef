"""`hpcfed.load` and `hpcfed export`: what others read of a run, to the bit."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcfed
from hpcfed import cli
from hpcfed.core import optional_imports
from hpcfed.core.errors import AbsentError, CheckpointError, ConfigError
from hpcfed.results import export
from hpcfed.results.tables import TABLES, table
from hpcfed.storage.record import load
from tests import records

REPOSITORY = Path(hpcfed.__file__).parents[1]


@pytest.fixture
def run(tmp_path) -> Path:
    return records.run(tmp_path / "run").path.parent


def test_a_run_gives_its_numbers_by_round_and_client(run):
    loaded = hpcfed.load(run)
    assert (len(loaded), loaded.rounds.tolist()) == (3, [1, 2, 3])
    assert (loaded.job["seed"], loaded.header["ranks"], loaded.architectures) == (
        0,
        2,
        ["cnn", "mlp"] * 2,
    )
    assert loaded.accuracy.shape == loaded.loss.shape == loaded.up.shape == (3, 4)
    assert (loaded.accuracy[1, 0], loaded.accuracy[1, 3]) == (1 - 1 / 3, (1 - 1 / 3) / 2)
    assert (loaded.down.sum(), loaded.up[2].tolist()) == (4 * (10 + 20 + 30), [3, 4, 5, 6])
    assert (
        loaded.seconds.tolist() == [2.1] * 3 and loaded.phases["wait"].tolist() == [[0.5, 0.0]] * 3
    )
    assert (loaded.label_counts.tolist()[1], loaded.classes) == ([2, 3], ["a", "b"])
    assert loaded.state.word == "finished" and loaded.summary()["rounds"] == 3


def test_unrecorded_values_are_nan(run):
    loaded = hpcfed.load(str(run))
    assert np.isnan(loaded.accuracy_before).all() and loaded.accuracy_before.shape == (3, 4)
    assert np.isnan(loaded.virtual_seconds).all() and loaded.virtual_seconds.shape == (3,)
    with pytest.raises(CheckpointError, match="did you mean 'clients/up'"):
        loaded.column("clients/uq")


def test_a_run_is_read_only(run):
    loaded = hpcfed.load(run)
    for array in (loaded.accuracy, loaded.seconds, loaded.label_counts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        loaded.accuracy = None


def test_refresh_reads_new_rounds_and_returns_whether_there_were_any(tmp_path):
    writer = records.run(tmp_path, 2, total=5)
    loaded = hpcfed.load(tmp_path)
    assert (loaded.refresh(), len(loaded)) == (False, 2)
    writer.append(records.row(3, 4, 2))
    writer.finish()
    assert (len(loaded), loaded.refresh(), len(loaded)) == (2, True, 3)


def test_a_notebook_shows_a_run_in_a_few_words_and_no_name_is_taken_for_html(tmp_path):
    run = records.run(tmp_path / "<b>x", 2, total=5).path.parent
    loaded = hpcfed.load(run)
    assert "Local on digits, iid, 4 clients, seed 0" in repr(loaded) and "rounds 2 of 5" in repr(
        loaded
    )
    page = loaded._repr_html_()
    assert "&lt;b&gt;x" in page and "<b>" not in page and "<th>accuracy</th><td>0.5000 (std" in page


def test_a_path_without_a_run_is_one_message(tmp_path):
    with pytest.raises(CheckpointError, match="no run has started in this folder"):
        hpcfed.load(tmp_path)
    with pytest.raises(AbsentError, match="nope: no such folder or file; `hpcfed status"):
        hpcfed.load("nope")


def test_tables_have_a_row_for_what_they_are_about(run):
    record = load(run)
    rows = {name: table(record, name) for name in TABLES}
    assert {name: len(next(iter(r.values()))) for name, r in rows.items()} == {
        "rounds": 3,
        "clients": 12,
        "ranks": 6,
        "labels": 8,
    }
    assert rows["clients"]["round"].tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert rows["clients"]["client"].tolist() == [0, 1, 2, 3] * 3
    assert rows["clients"]["architecture"].tolist() == ["cnn", "mlp"] * 6
    assert rows["clients"]["up"].tolist() == [1, 2, 3, 4, 2, 3, 4, 5, 3, 4, 5, 6]
    assert (
        rows["rounds"]["accuracy"].tolist() == record.columns["clients/accuracy"].mean(1).tolist()
    )
    assert rows["rounds"]["down"].tolist() == [40, 80, 120]
    assert rows["rounds"]["train_loss"].tolist() == [1, 1 / 2, 1 / 3]
    assert rows["ranks"]["rank"].tolist() == [0, 1] * 3
    assert [rows["labels"][name][3] for name in ("client", "class", "examples")] == [1, "b", 3]


def test_of_very_many_clients_a_table_has_those_that_were_there(tmp_path):
    writer = records.run(tmp_path, 0, total=2)
    writer.header["architectures"] = ["cnn", "mlp"]  # those that occur
    writer.arrays.clear()
    for ids in ([1, 3], [2]):
        columns = {
            "clients__id": np.array(ids),
            "clients__architecture": np.array([i % 2 for i in ids]),
        }
        writer.append(records.row(1, len(ids), 1, **columns))
    writer.finish()
    rows = table(load(tmp_path), "clients")
    assert [rows[name].tolist() for name in ("round", "client")] == [[1, 1, 2], [1, 3, 2]]
    assert rows["architecture"].tolist() == ["mlp", "mlp", "cnn"]
    assert len(table(load(tmp_path), "ranks")["rank"]) == 2


def test_a_run_without_rounds_has_tables_without_rows(tmp_path):
    records.run(tmp_path, 0, total=2)
    assert [
        len(next(iter(table(load(tmp_path), name).values())))
        for name in ("rounds", "clients", "ranks")
    ] == [0] * 3
    assert len(hpcfed.load(tmp_path)) == 0 and "rounds 0 of 2" in repr(hpcfed.load(tmp_path))


def test_csv_reads_back_to_the_bit(tmp_path):
    writer = records.run(tmp_path / "run", 0, K=5, total=40)
    for t in range(1, 41):
        values = np.array([1 / t, -0.0, np.nan, np.nextafter(t / 7, 1), 1e-320 * t])
        writer.append(records.row(t, 5, 1, clients__accuracy=values))
    writer.finish()
    assert cli.main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out")]) == 0
    with open(tmp_path / "out" / "clients.csv", newline="") as file:
        cells = [line["accuracy"] for line in csv.DictReader(file)]
    got = np.array([float(cell or "nan") for cell in cells])
    assert got.tobytes() == load(tmp_path / "run").column("clients/accuracy").tobytes()


def test_export_writes_tables_job_and_header(run, capsys):
    assert cli.main(["export", str(run)]) == 0
    files = {"rounds.csv", "clients.csv", "ranks.csv", "labels.csv", "job.json", "header.json"}
    files |= {"job.toml"}
    assert set(os.listdir(run / "export")) == files
    out = capsys.readouterr().out
    assert (
        all(str(run / "export" / name) in out for name in files) and "clients.csv: 12 rows" in out
    )
    assert json.loads((run / "export" / "job.json").read_text()) == load(run).header["job"]
    lines = (run / "export" / "ranks.csv").read_text().splitlines()
    assert lines[:2] == ["round,rank,evaluate,train,wait", "1,0,1.0,1.0,0.5"]


def test_parquet_and_frames_hold_the_same_bits(run):
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    export.export(run, format="parquet")
    loaded = hpcfed.load(run)
    for name in TABLES:
        frame, rows = loaded.frame(name), table(load(run), name)
        stored = parquet.read_table(run / "export" / f"{name}.parquet")
        assert list(frame) == stored.column_names == list(rows)
        for column, values in rows.items():
            assert (
                frame[column].to_numpy().tolist() == stored[column].to_pylist() == values.tolist()
            )
    assert isinstance(loaded.frame(), pandas.DataFrame) and len(loaded.frame()) == 12


def test_pandas_reads_csv_to_the_bit(run):
    pandas = pytest.importorskip("pandas")
    export.export(run)
    frame = pandas.read_csv(run / "export" / "clients.csv")
    assert (
        frame["accuracy"].to_numpy().tobytes()
        == hpcfed.load(run).frame()["accuracy"].to_numpy().tobytes()
    )


@pytest.mark.parametrize("package", ["pandas", "pyarrow"])
def test_a_missing_package_is_one_message_with_the_extra(run, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r'pip install "hpcfed\[export\]"'):
        hpcfed.load(run).frame() if package == "pandas" else export.export(run, format="parquet")
    assert not (run / "export").exists()


def test_an_unknown_table_is_one_message(run):
    pytest.importorskip("pandas")
    with pytest.raises(ConfigError, match="no table 'client'; did you mean 'clients'"):
        hpcfed.load(run).frame("client")


def test_a_folder_that_cannot_be_written_is_one_message(run, capsys):
    assert cli.main(["export", str(run), "-o", str(run / "results.h5" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_results_are_read_without_torch_pandas_or_mpi(run):
    code = (
        "import sys, hpcfed; run = hpcfed.load(sys.argv[1]); repr(run); "
        "print(sorted({'torch', 'pandas', 'mpi4py', 'matplotlib'} & set(sys.modules)))"
    )
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(run)], capture_output=True, text=True, env=env
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_needed_and_existing_data_are_passed_on():
    assert optional_imports.import_extra("json", "export", "a test") is json
