"""What result files tell: numbers by hand, references that exist, pictures that are written."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcfed.cli import main
from hpcfed.core import tables
from hpcfed.core.tables import console, duration, size
from hpcfed.report import catalogue, cite
from hpcfed.report.figures.curves import Curve
from hpcfed.report.measures import View, measure
from hpcfed.report.references import bibtex, references
from hpcfed.results import summary
from hpcfed.results.columns import so_far
from hpcfed.results.export import to_csv
from hpcfed.storage.columns import PHASES
from hpcfed.storage.results import Record, Results, load

HEAD = 4 * (512 * 10 + 10)  # bytes of FedClassAvg's upload for 10 classes
NAN = np.nan


def header(method: str = "fedclassavg", data: str = "digits", **more: object) -> dict[str, object]:
    job = {
        "algorithm": {"name": method},
        "data": {"name": data, "partition": "dirichlet", "alpha": 0.5},
        "clients": 4,
        "rounds": 3,
        "seed": 7,
    }
    facts = {"ranks": 2, "classes": ["a", "b"], "hardware": {"cores": 2}}
    return {"job": job, "architectures": ["resnet18", "alexnet"] * 2, **facts} | more


def row(accuracy: list[float], cohort: list[int], **more: object) -> dict[str, object]:
    member = np.isin(np.arange(4), cohort)
    spent = {
        "train": [3.0, 1.0],
        "communicate": [0.5, 0.5],
        "evaluate": [1.0, 1.0],
        "wait": [0.0, 2.0],
    }
    return {
        "clients/accuracy": np.array(accuracy),
        "clients/accuracy_before": np.array(accuracy) / 2,
        "clients/epochs": 1.0 * member,
        "clients/down": HEAD * member,
        "clients/up": HEAD * member,
        "clients/cohort": member,
        **{f"ranks/{phase}": np.array(seconds) for phase, seconds in spent.items()},
        "rounds/seconds": 5.0,
    } | more


def run_of(folder: Path, rows: list[dict[str, object]], **about: object) -> Path:
    folder.mkdir(exist_ok=True)
    results = Results(
        folder, header(**about), {"label_counts": np.array([[5, 0], [1, 4], [0, 9], [2, 2]])}
    )
    for cells in rows:
        results.append(cells)
    results.finish()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three rounds; client 3 has no test data; nobody is evaluated in the last round."""
    rows = [
        row([0.5, 0.3, 0.5, NAN], [0, 1, 2, 3]),
        row([0.8, 0.4, 0.6, NAN], [0, 1]),
        row([NAN] * 4, [2, 3], **{"ranks/checkpoint": np.array([1.0, 1.0])}),
    ]
    return run_of(tmp_path / "run", rows)


@pytest.mark.parametrize("epsilon", [NAN, np.inf])
def test_an_epsilon_that_is_not_finite_is_none_in_json_and_is_named_in_the_text(
    tmp_path, capsys, epsilon
):
    about = {"delta": 1e-5, "neighbours": "one client is added", "accountant": "pld"}
    about |= {"by": "central", "noise": 1.0, "cohorts": "by Poisson sampling"}
    rows = [row([0.5] * 4, [0, 1], **{"rounds/epsilon": value}) for value in (1.5, epsilon)]
    path = run_of(tmp_path / "private", rows, privacy=about)
    assert main(["summary", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["privacy"]["epsilon"] is None
    assert main(["summary", str(path)]) == 0
    assert "privacy: epsilon not finite at delta 1e-05" in capsys.readouterr().out


def test_accuracy_is_the_mean_over_clients_of_the_last_evaluated_round(run):
    accuracy = summary.facts(load(run))["accuracy"]
    assert accuracy["mean"] == pytest.approx(0.6)
    assert accuracy["std"] == pytest.approx(np.sqrt(0.08 / 3))  # population: (0.2² + 0.2² + 0) / 3
    assert (accuracy["min"], accuracy["max"], accuracy["clients"]) == (0.4, 0.8, 3)
    assert accuracy["before"]["mean"] == pytest.approx(0.3)


def test_accuracy_is_given_by_architecture_too(run):
    by = summary.facts(load(run))["accuracy"]["by_architecture"]
    assert by["resnet18"] == {"mean": pytest.approx(0.7), "std": pytest.approx(0.1), "clients": 2}
    assert by["alexnet"] == {"mean": 0.4, "std": None, "clients": 1}


def test_the_best_round_counts_from_one_and_says_how_it_was_chosen(run):
    best = summary.facts(load(run))["best"]
    assert best == {"round": 2, "mean": pytest.approx(0.6), "selected_on": "test data"}


def test_the_summary_says_which_engine_trained_if_the_results_do(run, tmp_path):
    assert summary.facts(load(run))["engine"] is None and "engine" not in summary.brief(load(run))
    stacked = load(run_of(tmp_path / "stacked", [], engine="stacked"))
    assert summary.facts(stacked)["engine"] == "stacked"
    assert "engine: stacked" in summary.brief(stacked).splitlines()


def test_traffic_is_exact_per_client_and_round(run):
    traffic = summary.facts(load(run))["traffic"]
    assert (traffic["down_per_client_round"], traffic["up_per_client_round"]) == (20520, 20520)
    assert (traffic["down_total"], traffic["up_total"]) == (8 * 20520, 8 * 20520)


def test_time_is_the_mean_over_ranks_and_shares_add_up_to_one(run):
    seconds = summary.facts(load(run))["time"]
    assert (seconds["seconds"], seconds["seconds_per_round"]) == (15.0, 5.0)
    assert seconds["train"] == {
        "seconds": 6.0,
        "share": pytest.approx(6 / 14.5),
    }  # 6 + 1.5 + 3 + 3 + 1
    assert seconds["checkpoint"]["seconds"] == 1.0
    assert sum(seconds[phase]["share"] for phase in PHASES) == pytest.approx(1)


def test_ranks_that_a_round_did_not_have_do_not_count(tmp_path):
    rows = [row([1.0] * 4, [0]), row([1.0] * 4, [0], **{"ranks/train": np.array([7.0])})]
    assert (
        summary.facts(load(run_of(tmp_path / "r", rows)))["time"]["train"]["seconds"] == 2.0 + 7.0
    )


def test_a_run_without_rounds_has_facts_and_a_table(tmp_path):
    run = run_of(tmp_path / "empty", [])
    assert summary.facts(load(run))["accuracy"]["mean"] is None
    console().print(summary.render(load(run)))


def test_bytes_and_seconds_are_written_for_people():
    assert [size(n) for n in (0, 999, 20520, 999_950)] == ["0 B", "999 B", "20.5 kB", "1.0 MB"]
    assert [size(n) for n in (999.4, 999.6)] == ["999 B", "1.0 kB"]
    assert [duration(s) for s in (0.25, 59.96, 125)] == ["0.25 s", "1 min 0 s", "2 min 5 s"]
    assert duration(12000) == "3 h 20 min"
    mean = 2_026_719.466666  # bytes, of clients whose models differ
    assert (
        summary.amount(mean) == "2,026,719.5 B (2.0 MB)"
        and summary.amount(20520) == "20,520 B (20.5 kB)"
    )
    up, seconds = View("up", measure("up")), View("seconds", measure("seconds"))
    assert up.number(mean) == "2,026,719 B (2.0 MB)" and up.number(999.6) == "1,000 B (1.0 kB)"
    assert [seconds.number(s) for s in (3, 0.1234, 1234.5)] == ["3 s", "0.123 s", "1,234 s"]


def test_every_citation_of_every_registry_has_an_entry():
    used = {
        key
        for kind in catalogue.REGISTRIES
        for entry in catalogue.registry(kind).values()
        for key in catalogue.keys(entry)
    }
    assert used and used <= set(references())


def test_every_reference_has_title_year_and_closed_braces():
    for key, entry in references().items():
        assert entry.count("{") == entry.count("}") and "title" in entry and "year" in entry, key


def test_a_run_cites_hpcfed_and_each_of_its_parts_once(run):
    used = cite.citation_keys(load(run))
    assert used[:3] == ["hpcfed", "jang2022", "khosla2020"] and len(set(used)) == len(used)
    assert any(key.startswith("alpaydin1998") for key in used) and "he2016" in used
    assert bibtex(used).count("\n@") == len(used) - 1


def test_a_file_of_ones_own_is_not_cited(tmp_path):
    run = run_of(tmp_path / "own", [], data="mine.h5", architectures=["mlp"] * 4)
    assert "mcmahan2017" in cite.citation_keys(load(run)) and not any(
        "1998" in key for key in cite.citation_keys(load(run))
    )


@pytest.mark.parametrize("kind", catalogue.REGISTRIES)
def test_everything_that_is_listed_can_be_shown(kind):
    for name in catalogue.registry(kind):
        facts = catalogue.show(name, json=True)
        assert facts["name"] == name and facts["line"] and json.dumps(facts, allow_nan=False)
        console().print(catalogue.page(facts))


def test_an_algorithm_shows_its_parameters_with_type_range_default_and_meaning():
    facts = catalogue.show("fedprox", json=True)
    mu = next(p for p in facts["parameters"] if p["name"] == "mu")
    assert (mu["type"], mu["range"]) == ("float", ">= 0") and mu["default"] >= 0
    assert mu["meaning"] and not mu["meaning"].endswith("]")
    assert facts["accepts"] == "one architecture" and facts["guide"]["sent"] == "all weights"
    assert "Deviations" in facts["text"] and "{li2020," in facts["bibtex"]


def test_a_model_shows_parameters_and_multiply_adds():
    sizes = catalogue.show("logistic", json=True)["sizes"]
    assert sizes["1x28x28"] == {"parameters": 7850, "multiply_adds": 7840}  # 784 * 10 + 10
    assert sizes["3x32x32"] == {"parameters": 30730, "multiply_adds": 30720}


@pytest.mark.parametrize(
    ("spelt", "name"), [("FedAvg", "fedavg"), ("KT-pFL", "ktpfl"), ("CIFAR-10", "cifar10")]
)
def test_a_name_is_shown_however_its_paper_spells_it(spelt, name):
    assert catalogue.show(spelt, json=True)["name"] == name


def test_a_partition_is_shown_with_its_fields(capsys):
    parameters = [p["name"] for p in catalogue.show("dirichlet", json=True)["parameters"]]
    assert parameters == ["alpha", "sizes"]
    console().print(catalogue.show("dirichlet"))
    assert "data.alpha = 0.5" in capsys.readouterr().out


def test_a_rank_prints_plain_lines_where_its_mpirun_writes_to_no_terminal(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(
        "sys.stdout", SimpleNamespace(isatty=lambda: True)
    )  # the rank's own pseudo-terminal
    for beyond, shown in (
        ("/dev/pts/0", True),
        ("pipe:[1]", False),
        ("/home/user/log", False),
        ("/dev/null", False),
    ):
        monkeypatch.setattr("os.readlink", lambda _, beyond=beyond: beyond)
        assert tables.terminal() == shown, beyond


def test_virtual_time_is_printed_and_drawn(tmp_path: Path):
    rows = [row([0.5] * 4, [0, 1], **{"rounds/virtual_seconds": s}) for s in (1.5, 4.0)]
    record = load(run_of(tmp_path / "timed", rows))
    assert summary.facts(record)["time"]["virtual_seconds"] == 4.0
    assert f"virtual: {duration(4.0)}" in told(record)
    assert Curve.of(record).seconds.tolist() == [1.5, 4.0]


def test_bytes_are_counted_per_report_if_a_client_reports_several_times(tmp_path: Path):
    reports = {
        "clients/reports": np.array([3, 1, 0, 0]),
        "clients/down": np.array([3 * HEAD, HEAD, 0, 0]),
    }
    record = load(run_of(tmp_path / "events", [row([0.5] * 4, [0, 1], **reports)]))
    assert summary.facts(record)["traffic"]["down_per_client_round"] == HEAD


def told(record: Record) -> str:
    """The summary as people see it."""
    out = console()
    with out.capture() as text:
        out.print(summary.render(record))
    return text.get()


def test_so_far_counts_up_over_all_clients_and_time_too_far_to_be_drawn_is_unknown():
    columns = {
        "clients/epochs": np.array([[1, NAN], [1, 1]]),
        "clients/down": np.array([[10, 0], [10, 10]]),
        "rounds/virtual_seconds": np.array([2.0, 1e31]),
    }
    curve = so_far(Record({"job": {"clients": 2}, "architectures": ["mlp"] * 2}, {}, columns, 2))
    assert curve["epochs"].tolist() == [0.5, 1.5] and curve["bytes"].tolist() == [5, 15]
    assert curve["virtual"][0] == 2.0 and np.isnan(curve["virtual"][1])


def test_own_data_are_named_by_file_or_label_and_the_path_appears_once(tmp_path):
    head = header(data="/somewhere/far/away/mine.npz")
    record = load(run_of(tmp_path / "run", [row([0.5] * 4, [0])], job=head["job"]))
    assert summary.title(record).startswith("FedClassAvg on mine.npz, dirichlet(0.5)")
    text = drawn_text(record)
    assert text.count("mine.npz") == 2 and text.count("data: /somewhere/far/away/mine.npz") == 1
    head["job"]["data"]["label"] = "my birds"
    labelled = load(run_of(tmp_path / "labelled", [row([0.5] * 4, [0])], job=head["job"]))
    assert summary.title(labelled).startswith("FedClassAvg on my birds, ")
    head["job"]["data"]["shift"] = {"rotation_groups": 4, "degrees": [], "noise": 0.1}
    shifted = load(run_of(tmp_path / "shifted", [row([0.5] * 4, [0])], job=head["job"]))
    assert "dirichlet(0.5), 4 rotations, noise 0.1, 4 clients" in summary.title(shifted)


def drawn_text(record: Record) -> str:
    """What `hpcfed summary` prints."""
    out = console()
    with out.capture() as captured:
        out.print(summary.render(record))
    return captured.get()


def test_one_client_has_no_deviation(tmp_path):
    record = load(run_of(tmp_path / "run", [row([0.5, NAN, NAN, NAN], [0])]))
    accuracy = summary.facts(record)["accuracy"]
    assert (accuracy["mean"], accuracy["std"], accuracy["clients"]) == (0.5, None, 1)
    line = next(line for line in drawn_text(record).splitlines() if "evaluated clients" in line)
    assert line.split()[-3:] == ["0.5000", "-", "1"]
    assert measure("last:1").of(record) == (0.5, None)


def test_a_summary_says_all_clients_only_if_all_have_a_value_and_names_no_absent_best_round(
    tmp_path,
):
    texts = [
        drawn_text(load(run_of(tmp_path / f"{i}", [row(values, [0])])))
        for i, values in enumerate(([0.5] * 4, [0.5, 0.6, NAN, NAN], [NAN] * 4))
    ]
    assert ["all clients, last round" in text for text in texts] == [True, False, False]
    assert ["evaluated clients, last round" in text for text in texts] == [False, True, True]
    assert ["best round: 1" in text for text in texts] == [True, True, False]
    assert "best round" not in texts[2]


def test_no_word_of_a_csv_file_is_a_formula(tmp_path):
    rows = {"class": np.array(["=1+1", "@x", "-2+3", "-1", "cat"], object), "n": np.arange(5)}
    to_csv(tmp_path / "a.csv", rows)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines == ["class,n", "'=1+1,0", "'@x,1", "'-2+3,2", "-1,3", "cat,4"]
