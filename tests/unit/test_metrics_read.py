"""Metrics as readers show them: numbers by hand from a file that nobody ran, and old files without
any.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import hpcfed
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.report.compare import compare
from hpcfed.report.fairness import gini, jain, worst, worst_tenth
from hpcfed.report.figures.command import draw, plot
from hpcfed.report.figures.curves import Curve, y
from hpcfed.report.figures.registry import FIGURES
from hpcfed.report.figures.runs import load_runs
from hpcfed.report.measures import measure
from hpcfed.report.page import methods
from hpcfed.report.table import table
from hpcfed.results import summary
from hpcfed.results.run import Run
from hpcfed.results.tables import of_rounds
from hpcfed.storage.results import Results, load
from tests.unit.test_table import job

NAN = np.nan


def run(
    folder: Path, seed: int = 0, method: str = "fedavg", add: float = 0.0, auc: float = NAN
) -> Path:
    """Three rounds of two clients; in the last, client 0 has this ROC-AUC, or none."""
    folder.mkdir(parents=True)
    names = ["accuracy", "f1", "roc_auc"]
    about = {"job": job(method, seed=seed), "ranks": 1, "architectures": ["mlp", "cnn"]}
    results = Results(folder, about | {"ended": "finished", "metrics": names}, {})
    rows = [
        ([0.2, 0.4], [0.6, 0.8], 0.1),
        ([0.5, 0.7], [0.5, 0.9], 0.3),
        ([0.4, 0.6], [auc, 0.7], 0.5),
    ]
    for f1, roc_auc, pooled in rows:
        results.append(
            {
                "clients/accuracy": np.array([0.8, 0.9]),
                "clients/cohort": np.ones(2),
                "clients/f1": np.array(f1) + add,
                "clients/f1_received": np.array(f1) / 2,
                "clients/roc_auc": np.array(roc_auc),
                "rounds/accuracy_pooled": 0.85,
                "rounds/f1_pooled": pooled + add,
                "rounds/f1_received_pooled": pooled / 5,
                "rounds/roc_auc_pooled": 0.75,
                "rounds/seconds": 2.0,
            }
        )
    results.finish()
    return folder


def old(folder: Path) -> Path:
    """A file of before there were metrics."""
    folder.mkdir(parents=True)
    about = {"job": job(), "ranks": 1, "architectures": ["mlp", "cnn"], "ended": "finished"}
    results = Results(folder, about, {})
    for _ in range(3):
        results.append({"clients/accuracy": np.array([0.5, 0.7]), "clients/cohort": np.ones(2)})
    results.finish()
    return folder


def test_the_summary_has_each_metric_of_clients_and_pooled(tmp_path: Path):
    metrics = summary.facts(load(run(tmp_path / "run")))["metrics"]
    assert [*metrics] == ["accuracy", "f1", "roc_auc"]
    f1, auc = metrics["f1"], metrics["roc_auc"]
    assert (f1["mean"], f1["pooled"], f1["clients"]) == (0.5, 0.5, 2)
    assert f1["received"] == {"mean": 0.25, "std": pytest.approx(0.05), "pooled": 0.1}
    assert f1["best"]["round"] == 2
    assert (auc["mean"], auc["clients"], auc["pooled"]) == (0.7, 1, 0.75)
    assert json.dumps(metrics)


def test_the_summary_says_how_many_clients_have_no_value(tmp_path: Path):
    console = Console(width=120, record=True)
    console.print(summary.render(load(run(tmp_path / "run"))))
    text = " ".join(console.export_text().split())
    assert "ROC-AUC 0.7000 - 1, 1 have none 0.7500" in text
    assert "F1 0.5000 0.1000 2 0.5000" in text


def test_an_old_file_has_accuracy_alone(tmp_path: Path):
    path = old(tmp_path / "run")
    facts = summary.facts(load(path))
    assert [*facts["metrics"]] == ["accuracy"] and facts["metrics"]["accuracy"]["pooled"] is None
    assert hpcfed.load(path).metrics == ["accuracy"]
    assert methods.by_metric([Run("a", record=load(path))], [("a", [0])]) == []
    assert "not recorded" in table([path], metric="f1")


def test_a_run_gives_its_metrics_as_arrays(tmp_path: Path):
    loaded = hpcfed.load(run(tmp_path / "run"))
    assert loaded.metrics == ["accuracy", "f1", "roc_auc"]
    assert loaded.metric("f1").shape == (3, 2) and loaded.metric("f1_pooled").tolist() == [
        0.1,
        0.3,
        0.5,
    ]
    with pytest.raises(CheckpointError, match="no column 'clients/kappa'"):
        loaded.metric("kappa")


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("last", (0.5, pytest.approx(0.1))),
        ("best", (0.6, pytest.approx(0.1))),
        ("received", (0.25, pytest.approx(0.05))),
        ("last:2", (pytest.approx(0.55), pytest.approx(0.1))),
        ("pooled", (0.5, None)),
        ("received_pooled", (0.1, None)),
        ("final_pooled", (None, None)),
    ],
)
def test_a_measure_is_of_the_metric_that_is_asked_for(value: str, want: tuple, tmp_path: Path):
    assert measure(value, "f1").of(load(run(tmp_path / "run"))) == want


@pytest.mark.parametrize("scored", ["accuracy", "loss"])
def test_a_metric_that_is_undefined_in_the_last_round_is_not_that_of_an_earlier_one(
    scored: str, tmp_path: Path
):
    names, auc = ["accuracy", "roc_auc"], ([0.1, 0.3], [NAN, NAN])
    about = {"job": job(), "ranks": 1, "architectures": ["mlp", "cnn"], "ended": "finished"}
    results = Results(tmp_path, about | {"metrics": names}, {})
    for values in auc:
        row = {f"clients/{scored}{phase}": np.array([0.5, 0.7]) for phase in ("", "_before")}
        row |= {f"clients/roc_auc{phase}": np.array(values) for phase in ("", "_before")}
        results.append(row | {"rounds/roc_auc_pooled": values[0]})
    results.finish()
    record = load(tmp_path)
    for value in ("last", "before", "pooled", "last:1"):
        one = measure(value, "roc_auc")
        assert one.of(record) == (None, None) and not (one.each and one.each(record))
    assert measure("last:2", "roc_auc").of(record) == (0.2, pytest.approx(0.1))
    assert measure("last:2", "roc_auc").each(record) == {0: 0.1, 1: 0.3}
    assert measure("last:3", "roc_auc").of(record) == (None, None)
    assert measure("best", "roc_auc").of(record)[0] == 0.2


@pytest.mark.parametrize(
    ("value", "want"),
    [  # of the clients' F1 of 0.4 and 0.6
        ("worst", 0.4),
        ("worst_tenth", 0.4),
        ("spread", 0.1),
        ("jain", 1.0**2 / (2 * (0.16 + 0.36))),
        ("gini", 2 * 0.2 / (2 * 4 * 0.5)),
        ("received_worst", 0.2),
        ("final_gini", None),
    ],
)
def test_a_measure_says_how_equally_clients_are_served(value, want, tmp_path: Path):
    got, deviation = measure(value, "f1").of(load(run(tmp_path / "run")))
    assert got == (None if want is None else pytest.approx(want, abs=1e-12)) and deviation is None


def test_the_worst_client_of_an_error_has_the_highest_value_and_less_spread_is_better():
    values = np.arange(20.0)
    assert (worst(values, high=False), worst_tenth(values, high=False)) == (19.0, 18.5)
    assert (worst(values, high=True), worst_tenth(values, high=True)) == (0.0, 0.5)
    better = {name: measure(name, "mse").high for name in ("worst", "spread", "jain", "gini")}
    assert better == {"worst": False, "spread": False, "jain": True, "gini": False}


def test_equal_clients_are_equally_served():
    values = np.full(7, 0.3)
    assert jain(values, True) == pytest.approx(1) and gini(values, True) == pytest.approx(0)
    assert jain(np.eye(5)[0], True) == pytest.approx(1 / 5)  # one client has everything
    assert gini(np.eye(5)[0], True) == pytest.approx(4 / 5)
    assert np.isnan(gini(np.zeros(3), True)) and np.isnan(jain(np.zeros(3), True))


def test_jain_and_gini_of_negative_values_are_undefined():
    kappas = np.array([-0.1, 0.5, 0.6])
    assert np.isnan(gini(kappas, True)) and np.isnan(jain(kappas, True))


def test_a_metric_is_refused_if_it_is_unknown_or_not_part_of_the_value():
    with pytest.raises(ConfigError, match="--metric: no metric 'f2'(.|\\n)*hpcfed list metrics"):
        measure("last", "f2")
    for value in ("down", "accuracy"):
        with pytest.raises(ConfigError, match=f"--metric f1, but --value {value}"):
            measure(value, "f1")
    with pytest.raises(ConfigError, match="--value: no value 'f1'"):
        measure("f1")


def test_table_and_compare_show_the_metric(tmp_path: Path):
    runs = [run(tmp_path / f"a{s}", s) for s in range(3)]
    runs += [run(tmp_path / f"b{s}", s, "fedprox", add=0.1) for s in range(3)]
    text = table(runs, metric="f1", value="pooled")
    assert text.startswith(
        "Test F1 of each client's model after local training in the last round, over the tes"
    )
    assert "0.5000" in text and "0.6000" in text
    text = compare(runs, metric="f1", format="csv").splitlines()
    assert [float(cell) for cell in text[1].split(",")[2:5]] == pytest.approx([0.6, 0.5, 0.1])


def test_curves_are_of_the_metric_that_is_asked_for(tmp_path: Path):
    path = run(tmp_path / "run")
    curve = Curve.of(load(path), "f1_pooled")
    assert curve.mean.tolist() == [0.1, 0.3, 0.5] and not curve.std.any()
    assert Curve.of(load(path), "f1").mean.tolist() == pytest.approx([0.3, 0.6, 0.5])
    assert y(1, "f1_pooled") == "test F1 after local training,\nall test examples together"
    assert y(1, "f1_received") == "test F1 of received models,\nmean ± std over clients"
    text = plot([path], "curves,accuracies", metric="f1", out=tmp_path / "f1.png")
    assert all(Path(line).exists() for line in text.splitlines())


def test_a_metric_that_a_run_has_not_or_a_figure_does_not_show_is_refused(tmp_path: Path):
    path = run(tmp_path / "run")
    with pytest.raises(ConfigError, match="run: no metric 'kappa'"):
        plot([path], metric="kappa")
    with pytest.raises(ConfigError, match="--metric f1, but phases shows none"):
        plot([path], "phases", metric="f1")
    with pytest.raises(ConfigError, match="give --metric f1"):
        plot([path], "accuracies", metric="f1_pooled")


def test_runs_whose_main_metrics_differ_share_no_axis(tmp_path: Path):
    runs = load_runs([run(tmp_path / name, s) for s, name in enumerate("ab")])
    runs[1] = runs[1].with_metric("f1")
    wanted = "the runs' metrics differ: accuracy of a, F1 of b; .*or --metric accuracy, f1"
    for name in ("curves", "learning", "accuracies"):
        with pytest.raises(ConfigError, match=f"^{name}: {wanted}"):
            FIGURES[name].load()(runs)
    with pytest.raises(ConfigError, match=wanted):
        draw(runs)  # labels alone are not what was asked for
    assert isinstance(draw(runs, "all")["curves"], ConfigError)
    for each in runs:
        each.record.arrays["links"] = np.zeros((0, 2), int)
    for name in ("halved", "topology"):  # of which --metric changes nothing
        wanted = f"^{name}: the runs' metrics differ: accuracy of a, F1 of b; .*of one task$"
        with pytest.raises(ConfigError, match=wanted):
            FIGURES[name].load()(runs)
    runs[1].record.header["metrics"] = ["mse"]
    with pytest.raises(ConfigError, match="; give runs of one task$"):
        FIGURES["curves"].load()(runs)


@pytest.mark.parametrize("figure", ["curves", "learning", "accuracies"])
def test_a_figure_of_a_metric_without_values_says_whether_it_was_recorded(tmp_path: Path, figure):
    runs = load_runs([run(tmp_path / "run")])
    for column in ("accuracy_received", "roc_auc"):
        runs[0].record.columns[f"clients/{column}"] = np.full((3, 2), NAN)
    wanted = r"accuracy_received was not recorded; .* evaluate\.received = true"
    with pytest.raises(ConfigError, match=f"^{figure}: run: {wanted}"):
        draw(runs, figure, metric="accuracy_received")
    wanted = "roc_auc is undefined for all clients.*; --metric roc_auc_pooled is over"
    with pytest.raises(ConfigError, match=f"^{figure}: run: {wanted}"):
        draw(runs, figure, metric="roc_auc")


def test_the_page_has_two_lines_a_metric(tmp_path: Path):
    runs = [Run(name, record=load(run(tmp_path / name, s))) for s, name in enumerate("ab")]
    lines = methods.by_metric(runs, [("fedavg", [0, 1])])
    assert lines[0] == ["metric", "fedavg"] and len(lines) == 1 + 2 * 3
    assert lines[3] == ["F1, mean over clients", "0.5000 ± 0.0000 (2 seeds), 2 clients"]
    assert lines[4] == ["F1, pooled", "0.5000 ± 0.0000 (2 seeds)"]
    assert lines[5][1].endswith("1 client")


def test_the_page_says_between_which_numbers_of_clients_seeds_have_a_value(tmp_path: Path):
    paths = [run(tmp_path / "a", 0), run(tmp_path / "b", 1, auc=0.9)]
    runs = [Run(path.name, record=load(path)) for path in paths]
    lines = methods.by_metric(runs, [("fedavg", [0, 1])])
    assert lines[5][1] == "0.7500 ± 0.0707 (2 seeds), 1 to 2 clients"


def test_rounds_as_a_table_have_mean_deviation_and_pooled(tmp_path: Path):
    rows = of_rounds(load(run(tmp_path / "run")))
    assert rows["f1"].tolist() == pytest.approx([0.3, 0.6, 0.5])
    assert rows["f1_std"].tolist() == pytest.approx([0.1] * 3)
    assert rows["f1_pooled"].tolist() == [0.1, 0.3, 0.5]
