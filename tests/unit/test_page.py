"""The numbers of the page, by hand: curves, tables, what differs, what is warned of. tests/browser
opens it.
"""

import re
import sys
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcfed import cli
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.report.compare import compare
from hpcfed.report.naming import with_titles
from hpcfed.report.page import charts, curves, encode, job, methods, notes, tables, write
from hpcfed.report.page.command import render_page, report, split_runs
from hpcfed.results.run import Run, find, name_runs
from hpcfed.storage import sweep as store
from hpcfed.storage.fields import flat
from hpcfed.storage.results import Record, Results

NAN = np.nan


def record(**more: object) -> Record:
    """Two rounds of three clients, on two ranks and then on one; client 2 has no test data."""
    about = {
        "algorithm": {"name": "fedavg"},
        "data": {"name": "digits", "partition": "iid"},
        "clients": 3,
        "rounds": 2,
        "seed": 0,
    }
    header = {
        "job": about,
        "architectures": ["mlp", "cnn", "mlp"],
        "ranks": 2,
        "classes": ["a", "b"],
    } | more
    columns = {
        "clients/accuracy": np.array([[0.2, 0.4, NAN], [0.5, 0.9, NAN]]),
        "clients/train_loss": np.array([[2.0, 4.0, NAN], [NAN, 3.0, 1.0]]),
        "clients/down": np.array([[10, 10, 0], [0, 10, 10]]),
        "clients/up": np.array([[5, 5, 0], [0, 5, 5]]),
        "clients/epochs": np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]),
        "clients/cohort": np.array([[True, True, False], [False, True, True]]),
        "clients/lost": np.array([[False, False, True], [False, False, False]]),
        "ranks/train": np.array([[1.0, 2.0], [4.0, NAN]]),
        "rounds/seconds": np.array([3.0, 5.0]),
    }
    return Record(header, {"label_counts": np.arange(6).reshape(3, 2)}, columns, 2)


def shown(name: str, one: Record) -> Run:
    return Run(name, record=replace(one, path=Path("nowhere/results.h5")))


def back(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(b64decode(text)), kind)


def test_curves_of_clients_come_back_in_single_precision():
    values = np.array([[0.1, NAN], [np.inf, 1e9]])
    packed = encode.curves(values)
    want = np.array([[0.1, NAN], [NAN, 1e9]], "<f4")
    np.testing.assert_array_equal(back(packed["data"], "<f4").reshape(packed["shape"]), want)


def test_numbers_of_runs_come_back_to_the_bit():
    values = np.array([[0.1, NAN, 1e300], [-0.0, np.inf, 3.0]])
    encoded = encode.exact(values)
    assert encoded["shape"] == [2, 3]
    np.testing.assert_array_equal(back(encoded["data"], "<f8").reshape(2, 3), values)


def test_a_run_is_drawn_as_means_over_its_clients():
    curve = curves.of_run(record(), curves.by_client(record()))
    assert curve["accuracy"] == pytest.approx([0.3, 0.7]) and curve[
        "accuracy_std"
    ] == pytest.approx([0.1, 0.2])
    assert curve["train_loss"] == pytest.approx([3.0, 2.0]) and curve[
        "train_loss_std"
    ] == pytest.approx([1.0, 1.0])
    assert curve["x_round"].tolist() == [1, 2] and curve["x_wall"].tolist() == [3.0, 8.0]
    assert curve["x_bytes"] == pytest.approx([10.0, 20.0]) and curve["x_epochs"] == pytest.approx(
        [2 / 3, 4 / 3]
    )
    assert np.isnan(curve["x_virtual"]).all()


def test_a_page_of_another_metric_has_it_in_curves_tables_and_heads_and_the_others_beside():
    one = record(metrics=["accuracy", "f1"])
    one = replace(one, columns=one.columns | {"clients/f1": np.array([[NAN] * 3, [0.1, 0.3, NAN]])})
    run = shown("a", one).with_metric("f1")
    assert tables.page_metric([run]) == "f1" and tables.further_metrics([run]) == ["accuracy"]
    cells = tables.clients(run.record, np.arange(3), "f1")
    assert cells["f1"] == [0.1, 0.3, None] and cells["accuracy"] == [0.5, 0.9, None]
    assert tables.run(run, "f1")["f1"] == pytest.approx(0.2)
    assert '"f1":["F1","share"]' in render_page([run]) and "F1 by architecture" in render_page(
        [run]
    )
    with pytest.raises(ConfigError, match="no metric 'f2'"):
        run.with_metric("f2")


def test_a_page_of_several_metrics_has_a_chooser_and_the_curves_and_tables_of_each():
    one = record(metrics=["accuracy", "f1"])
    one.columns["clients/f1"] = one.columns["clients/accuracy"] / 2
    page = render_page([shown("a", one)])
    assert '<option value="accuracy">accuracy</option><option value="f1">F1</option>' in page
    assert '<div data-metric="accuracy">' in page and '<div data-metric="f1" hidden>' in page
    assert '<figure data-metric="accuracy">' in page and '<figure data-metric="f1" hidden>' in page
    assert "Accuracy by architecture" in page and "F1 by architecture" in page
    values = curves.by_client(one, ["accuracy", "f1"])
    assert np.array_equal(values["f1"], values["accuracy"] / 2, equal_nan=True)
    assert {"f1", "f1_std"} <= {*curves.of_run(one, values, ["accuracy", "f1"])}
    assert 'id="metric"' not in render_page([shown("a", record())])


def test_the_traffic_of_a_client_adds_up():
    assert curves.by_client(record())["traffic"].tolist() == [[15, 15, 0], [15, 30, 15]]


def test_many_rounds_and_clients_are_thinned_evenly_and_only_evaluated_rounds_are_kept(monkeypatch):
    monkeypatch.setattr(curves, "MOST_ROUNDS", 4)
    monkeypatch.setattr(curves, "MOST_VALUES", 24)
    accuracy = np.full((20, 9), NAN)
    accuracy[1::2] = 0.5
    about = {"algorithm": {"name": "fedavg"}, "clients": 9, "rounds": 20}
    many = Record(
        {"job": about, "architectures": ["mlp"] * 9}, {}, {"clients/accuracy": accuracy}, 20
    )
    choice = curves.choose_curves(many, runs=2)
    assert choice.rounds.tolist() == [1, 7, 13, 19] and choice.clients.tolist() == [0, 4, 8]
    monkeypatch.setattr(curves, "LIVE_VALUES", 16)
    assert curves.choose_curves(many, runs=2, live=True).clients.tolist() == [0, 8]


def test_a_population_has_no_curves_of_clients():
    one = record()
    one.columns["clients/id"] = np.array([[5, 7, 8], [1, 2, 3]])
    choice = curves.choose_curves(one, runs=1)
    assert len(choice.clients) == 0 and curves.content(one, choice)["clients"] == {}
    assert tables.clients(one, choice.clients) == {}


def test_a_line_of_the_runs_table():
    row = tables.run(shown("a", record()))
    assert row | {"accuracy": 0.7, "best": 0.7, "std": 0.2} == {
        "run": "a",
        "method": "FedAvg",
        "data": "digits, iid",
        "clients": 3,
        "rounds": 2,
        "accuracy": 0.7,
        "std": 0.2,
        "best": 0.7,
        "best_round": 2,
        "down": 8,  # 40 bytes of four clients that reported and one that was lost
        "up": 5,
        "total": 60,
        "seconds": 8.0,
        "virtual": None,
        "epsilon": None,
    }
    assert (row["accuracy"], row["std"]) == (pytest.approx(0.7), pytest.approx(0.2))
    assert list(row) == [*tables.RUNS, *tables.EPSILON]
    assert "epsilon" not in tables.run_heads([shown("a", record())], "accuracy")


def test_the_clients_table():
    rows = tables.clients(record(placement=[0, 1, 0]), np.arange(3))
    assert rows["architecture"] == ["mlp", "cnn", "mlp"] and rows["rank"] == [0, 1, 0]
    assert rows["accuracy"] == [0.5, 0.9, None] and rows["train_loss"] == [2, 3, 1]
    assert (
        rows["rounds"] == [1, 2, 1]
        and rows["lost"] == [0, 0, 1]
        and rows["traffic"] == [15, 30, 15]
    )
    assert rows["before"] == [None] * 3 and list(rows) == list(tables.CLIENTS)


def test_differences_between_jobs_are_distinguished():
    runs = [shown(name, record()) for name in "ab"]
    runs[1] = shown(
        "b", record(job=runs[0].job | {"seed": 1, "algorithm": {"name": "fedprox", "mu": 0.1}})
    )
    tables = job.jobs(runs)
    assert tables.differs == ["algorithm.name", "seed", "algorithm.mu"]
    assert tables.values == [["fedavg", "0", ""], ["fedprox", "1", "0.1"]]
    assert tables.tables == [
        [
            ("field", "a", "b"),
            ("algorithm.name", "fedavg", "fedprox"),
            ("seed", "0", "1"),
            ("algorithm.mu", "", "0.1"),
        ]
    ]
    assert tables.same == {
        "data.name": "digits",
        "data.partition": "iid",
        "clients": "3",
        "rounds": "2",
    }


def test_differences_of_many_runs_fit_on_paper():
    jobs = [
        record().header["job"] | {"seed": i, **{f"field{n}": i for n in range(20)}}
        for i in range(11)
    ]
    tables = job.jobs([shown(str(i), record(job=one)) for i, one in enumerate(jobs)]).tables
    assert [len(lines[0]) for lines in tables] == [9, 4] and tables[1][0] == (
        "field",
        "8",
        "9",
        "10",
    )
    assert all(line[0] == other[0] for line, other in zip(*tables, strict=True))


def test_warnings_report_the_faults_of_the_record():
    before = {"rounds": 1, "commit": "abc", "ranks": 3, "versions": {"torch": "2.4"}}
    one = record(
        commit="def+", versions={"torch": "2.5"}, history=[before], faults=["", "diverged", "data"]
    )
    one.columns["clients/fault"] = np.array([[0, 0, 0], [1, 0, 0]])
    one.header["job"]["rounds"] = 9
    lines = list(notes.of_run(shown("a", one)))
    assert lines[0].startswith("stale, ") and lines[0].endswith(", 2 of 9 rounds are done")
    assert lines[1:] == list(notes.of_run(shown("a", one), states=False))
    assert lines[1:] == [
        "hpcfed had changes that were not committed: the commit named below is not all of it",
        "resumed after round 1; commit abc, then def+; versions.torch 2.4, then 2.5; ranks "
        "3, then 2",
        "from round 2 on the run had 1 rank, before that 2",
        "clients lost: 1 time in 1 round",
        "clients that failed and left the round (diverged): client 0 in round 2",
        "no accuracy in the last evaluated round, so not in its mean: clients 2",
    ]


def test_runs_on_different_machines_are_warned_of():
    runs = [shown(name, record(hardware={"cpu": name}, versions={"torch": "2"})) for name in "ab"]
    lines = notes.notes(runs, ["c: not started"])
    assert (
        lines[0] == ("", "c: not started") and ("a, b", "clients lost: 1 time in 1 round") in lines
    )
    assert lines[-1][1].startswith("runs differ in hardware.cpu;")


def with_job(name: str, method: str, seed: int, more: float = 0.0, **job: object) -> Run:
    """A run of `record` whose accuracies are so much higher."""
    one = record()
    about = one.header["job"] | {"algorithm": {"name": method}, "seed": seed, **job}
    columns = one.columns | {"clients/accuracy": one.columns["clients/accuracy"] + more}
    return shown(name, Record(one.header | {"job": about}, one.arrays, columns, 2))


def test_methods_are_compared_as_the_command_compares_them(tmp_path):
    runs = [
        with_job(f"{method}{seed}", method, seed, more * (1 + seed))
        for method, more in (("fedavg", 0.0), ("fedprox", 0.01))
        for seed in range(3)
    ]
    comparison = methods.comparison(with_titles(runs))
    folders = [stored(tmp_path / run.name, run.record) for run in runs]
    printed = compare(folders)
    assert printed.splitlines()[0] == comparison.caption
    cells = [[cell for cell in line if cell] for line in comparison.lines]
    lines = printed.splitlines()[2 : 2 + len(cells)]
    assert [re.split(r"  +", line.strip()) for line in lines] == cells
    assert printed.endswith("\n".join(comparison.notes)) and comparison.why == ""
    assert methods.comparison(runs[:3]) == methods.Compared()  # one method
    other = with_job("other", "fedprox", 0, clients=4)
    assert "cannot be paired" in methods.comparison([runs[0], other]).why


def test_a_method_without_finished_runs_takes_no_comparison_off_the_page():
    runs = [with_job(method, method, 0) for method in ("moon", "fedavg", "fedprox")]
    runs[0] = shown("moon", replace(runs[0].record, rounds=1))
    comparison = methods.comparison(runs)
    assert [line[0] for line in comparison.lines] == ["method", "fedavg (baseline)", "fedprox"]
    assert any("moon is not compared" in note for note in comparison.notes)


def test_accuracy_by_architecture_is_the_mean_over_clients_and_then_over_seeds():
    runs = [with_job("a", "fedavg", 0), with_job("b", "fedavg", 1, 0.1), with_job("c", "local", 0)]
    groups = methods.seeds(runs)
    assert groups == [("fedavg", [0, 1]), ("local", [2])]
    assert methods.by_architecture(runs, groups) == [
        ["architecture", "fedavg", "local"],
        ["all clients", "0.7500 ± 0.0707 (2 seeds)", "0.7000"],
        ["mlp", "0.5500 ± 0.0707 (2 seeds)", "0.5000"],
        ["cnn", "0.9500 ± 0.0707 (2 seeds)", "0.9000"],
    ]


def test_methods_and_the_table_of_runs_name_each_runs_metric_if_those_of_the_runs_differ():
    runs = [with_job("a", "fedavg", 0), with_job("b", "local", 0)]
    record = runs[1].record
    errors = {"clients/mse": 1e6 * record.columns["clients/accuracy"]}
    header = record.header | {"metrics": ["mse"]}
    runs[1] = shown("b", replace(record, header=header, columns=record.columns | errors))
    assert methods.by_architecture(runs, methods.seeds(runs))[:2] == [
        ["architecture", "fedavg: accuracy", "local: MSE"],
        ["all clients", "0.7000", "700,000"],
    ]
    heads = tables.run_heads(runs, tables.page_metric(runs))
    assert heads["metric"] == ("metric", "number")  # not decimals of a share
    assert heads["first_metric"] == ("first metric", "text")
    rows = [tables.run(run, tables.page_metric(runs)) for run in runs]
    assert [row["first_metric"] for row in rows] == ["accuracy", "MSE"]


def test_runs_of_several_tasks_have_a_chart_of_each_first_metric_and_none_that_mixes_them(
    monkeypatch,
):
    monkeypatch.setattr(charts, "charts", lambda names: {})  # empty ones take long to make
    accurate, one = shown("a", record()), record(metrics=["mse"])
    errors = {"clients/mse": 1e6 * one.columns["clients/accuracy"]}
    runs = [accurate, shown("b", replace(one, columns=one.columns | errors))]
    names = tables.curve_metrics(runs)
    assert names == ["accuracy", "mse"]
    page = render_page(runs)
    assert "<figcaption>test accuracy" in page and "<figcaption>test MSE" in page
    assert "test metric" not in page
    for of_run, other in zip(runs, names[::-1], strict=True):
        values = curves.by_client(of_run.record, names)
        assert np.array_equal(
            values[of_run.main_metric], of_run.metric(of_run.main_metric), equal_nan=True
        )
        assert np.isnan(values[other]).all() != (other == "accuracy")


def test_runs_with_one_seed_are_not_averaged():
    runs = [with_job("a", "fedavg", 0), with_job("b", "fedavg", 0)]
    assert methods.seeds(runs) == [("fedavg (a)", [0]), ("fedavg (b)", [1])]


def test_a_run_that_is_not_finished_is_averaged_with_no_other():
    runs = [with_job(name, "fedavg", seed) for seed, name in enumerate("abc")]
    runs[1] = shown("b", replace(runs[1].record, rounds=1))
    want = [("fedavg", [0, 2]), ("fedavg (b, not finished)", [1])]
    assert methods.seeds(runs) == want


def stored(folder: Path, one: Record, rounds: int = 2) -> Path:
    results = Results(folder, one.header | {"ended": "finished"}, one.arrays)
    for t in range(rounds):
        results.append({name: column[t] for name, column in one.columns.items()})
    results.finish()
    return folder


def test_a_run_is_shown_once_and_an_unfinished_one_says_so(tmp_path):
    folder = stored(tmp_path / "a", record(), rounds=1)
    runs, absent = split_runs(find([folder, folder / "results.h5"]))
    name_runs(runs)
    assert [run.name for run in runs] == ["a"] and absent == []
    assert re.fullmatch(r"stopped since .*, 1 of 2 rounds are done", next(notes.of_run(runs[0])))


def test_a_sweep_shows_its_runs_and_names_those_without_results(tmp_path):
    fields = flat(record().header["job"]) | {"rounds": 9}
    runs = tuple(store.Member(name, [], fields) for name in ("done", "absent"))
    sweep = store.Sweep(tmp_path / "sweep", [], str(tmp_path), 1, "", runs)
    store.write(sweep)
    stored(sweep.folder / "done", record())
    kept_runs, absent = split_runs(
        find([sweep.folder, sweep.folder])
    )  # as a pattern names it again
    name_runs(kept_runs)
    assert [run.name for run in kept_runs] == ["done"]
    assert absent == [f"{sweep.folder / 'absent'}: not started, 0 of 9 rounds are done"]


def test_the_page_asks_no_host_and_runs_its_own_scripts_alone(tmp_path):
    nasty = "</script><script>alert(1)</script>"
    page = render_page([shown(nasty, record(architectures=[nasty] * 3))], [nasty])
    assert nasty not in page and "<script>alert" not in page
    assert not re.search(r"<(script|link|img|iframe)[^>]*\s(src|href)=\"(?!data:)", page)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1].replace(
        "&#39;", "'"
    )
    assert (
        policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe-eval" not in policy
    )
    assert len(re.findall(r"<script>", page)) == len(re.findall("sha256-", policy)) == 2


def test_the_page_lies_in_the_folder_of_the_first_run(tmp_path):
    folder = stored(tmp_path / "a", record())
    assert report([folder / "results.h5"]) == str(folder / "report.html")
    assert report([folder], tmp_path / "new" / "r.html") == str(tmp_path / "new" / "r.html")
    with pytest.raises(ConfigError, match=r"results.h5/r.html: cannot write the page: Not a dir"):
        report([folder], folder / "results.h5" / "r.html")
    with pytest.raises(ConfigError, match=r"end it in \.html"):
        report([folder], tmp_path / "r.pdf")
    with pytest.raises(CheckpointError, match="absent"):
        report([tmp_path / "absent"])


def test_a_run_without_rounds_has_a_page(tmp_path):
    empty = record()
    empty = Record(empty.header, empty.arrays, {}, 0)
    assert "no accuracy was recorded" in render_page([shown("a", empty)])


def test_a_missing_library_is_one_message(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(ConfigError, match=r"the package bokeh, .*hpcfed\[report\]"):
        write.check()
    folder = stored(tmp_path / "run", record())
    assert cli.main(["watch", str(folder), "--web"]) == 2
    assert "bokeh" in capsys.readouterr().err
