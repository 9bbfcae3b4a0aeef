"""The numbers behind each figure, by hand."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.errors import ConfigError
from hpcfed.report.figures import (
    clients,
    curves,
    halved,
    learning,
    memory,
    phases,
    ranks,
    topology,
    virtual,
)
from hpcfed.report.figures.groups import groups
from hpcfed.report.figures.registry import FIGURES
from hpcfed.report.figures.runs import load_runs, setting
from hpcfed.report.ranks import Ranks, critical_difference, rank
from hpcfed.results.run import Run
from hpcfed.storage.record import Record
from tests.unit.test_report import HEAD, NAN, header, row, run_of

FOUR = [0, 1, 2, 3]
OURS = (
    "curves",
    "labels",
    "learning",
    "bytes",
    "time",
    "accuracies",
    "halved",
    "phases",
    "memory",
    "staleness",
    "topology",
)


def one(folder: Path, rows: list[dict[str, object]], **job: object) -> Run:
    """A run with these rows; fields of its job by name, `_` for the dot."""
    [run] = load_runs([run_of(folder, rows)])
    for name, value in job.items():
        part, _, field = name.rpartition("_")
        (run.record.header["job"].setdefault(part, {}) if part else run.record.header["job"])[
            field
        ] = value
    copy = Run(run.path, record=run.record)
    copy.name = run.name
    return copy


def test_runs_that_differ_in_the_seed_are_one_line_and_data_make_panels(tmp_path):
    runs = [
        one(tmp_path / "a", [], seed=0),
        one(tmp_path / "b", [], seed=1),
        one(tmp_path / "c", [], algorithm_name="fedprox", algorithm_mu=0.1),
        one(tmp_path / "d", [], algorithm_name="fedprox", algorithm_mu=1.0),
        one(tmp_path / "e", [], data_name="mnist", data_alpha=0.1, quiet=True),
    ]
    numbers = [
        (group.panel.split(",")[0], group.label, [run.name for run in group.runs])
        for group in groups(runs)
    ]
    assert numbers == [
        ("digits", "FedClassAvg", ["a", "b"]),
        ("digits", "FedProx, mu 0.1", ["c"]),
        ("digits", "FedProx, mu 1", ["d"]),
        ("mnist", "FedClassAvg", ["e"]),
    ]
    assert groups(runs)[3].panel == "mnist, dirichlet(0.1), 4 clients"


def test_spreads_of_a_partition_with_two_skews_make_panels(tmp_path):
    runs = [
        one(tmp_path / f"{s}", [], data_partition="distribution", data_spread=s, seed=s)
        for s in (1, 2)
    ]
    assert [group.panel for group in groups(runs)] == [
        f"digits, distribution, 4 clients, spread {spread}" for spread in (1, 2)
    ]


def test_the_band_of_a_line_is_over_seeds_or_all_their_clients_in_rounds_that_all_have(tmp_path):
    first = one(tmp_path / "a", [row([0.2, 0.4, NAN, NAN], FOUR), row([0.9] * 4, FOUR)], seed=0)
    second = one(tmp_path / "b", [row([0.6, 0.8, NAN, NAN], FOUR)], seed=1)
    [(group, curve)] = learning.numbers([first, second])
    assert (group.runs, curve.rounds.tolist(), curve.epochs.tolist()) == (
        (first, second),
        [1],
        [1.0],
    )
    assert curve.traffic.tolist() == [2 * HEAD]
    assert curve.mean.tolist() == pytest.approx([0.5])
    assert curve.std.tolist() == pytest.approx([np.std([0.3, 0.7], ddof=1)])
    first.figure_band = "clients"
    [(_, curve)] = learning.numbers([first, second])
    assert curve.std.tolist() == pytest.approx([np.sqrt((0.3**2 + 0.1**2 + 0.1**2 + 0.3**2) / 4)])


def test_accuracy_over_bytes_and_over_time_wants_bytes_and_time(tmp_path):
    silent = one(
        tmp_path / "a",
        [row([0.5] * 4, FOUR, **{"clients/up": np.zeros(4), "clients/down": np.zeros(4)})],
    )
    with pytest.raises(ConfigError, match="bytes: no run sent anything"):
        learning.traffic([silent])
    with pytest.raises(ConfigError, match=r"time: no run recorded virtual time.*\[system\]"):
        learning.seconds([silent])


def test_a_strip_has_the_clients_of_an_architecture_as_they_were_last_evaluated(tmp_path):
    run = one(
        tmp_path / "a",
        [row([0.1] * 4, FOUR), row([0.5, 0.3, 0.7, NAN], FOUR), row([NAN] * 4, FOUR)],
    )
    resnet, alexnet = clients.numbers([run])
    assert (resnet.kind, resnet.accuracy.tolist(), resnet.mean) == (
        "resnet18",
        [0.5, 0.7],
        pytest.approx(0.6),
    )
    assert (alexnet.kind, alexnet.accuracy.tolist(), alexnet.mean) == ("alexnet", [0.3], 0.3)
    with pytest.raises(ConfigError, match=r"b: no round has been evaluated yet.*evaluate\.every"):
        clients.numbers([one(tmp_path / "b", [])])


def test_a_curve_over_halved_data_is_the_mean_over_seeds_by_share(tmp_path):
    shares = [(0.4, 0, 0.6), (0.4, 1, 0.8), (0.0, 0, 0.9)]
    runs = [
        one(tmp_path / f"r{i}", [row([accuracy] * 4, FOUR)], data_halve=share, seed=seed)
        for i, (share, seed, accuracy) in enumerate(shares)
    ]
    [curve] = halved.numbers(runs)
    assert (curve.share.tolist(), curve.mean.tolist()) == ([0.0, 0.4], pytest.approx([0.9, 0.7]))
    assert curve.std.tolist() == pytest.approx([0.0, np.sqrt(0.02)])  # of 0.6 and 0.8, n - 1
    with pytest.raises(ConfigError, match=r"do not differ in data\.halve"):
        halved.numbers(runs[:2])


def test_phases_are_the_mean_of_the_rounds_that_a_rank_had_and_other_is_the_rest(tmp_path):
    alone = {
        f"ranks/{name}": np.array([seconds])
        for name, seconds in (
            ("train", 4.0),
            ("communicate", 0.0),
            ("evaluate", 0.0),
            ("wait", 0.0),
        )
    }
    run = one(
        tmp_path / "a", [row([0.5] * 4, FOUR), row([0.5] * 4, FOUR, **alone)]
    )  # 5 s each; then one rank died
    [numbers] = phases.numbers([run])
    assert numbers.seconds["train"].tolist() == [3.5, 1.0] and numbers.seconds["wait"].tolist() == [
        0.0,
        2.0,
    ]
    assert numbers.seconds["server"].tolist() == [0.0, 0.0]
    assert numbers.seconds["other"].tolist() == [0.75, 0.5]  # (0.5 + 1) / 2 and 5 - 1 - 0.5 - 1 - 2
    assert numbers.wait_share == pytest.approx(2.0 / 10.0)


def test_phases_of_all_runs_have_one_scale(tmp_path):
    slow = {"rounds/seconds": 50.0}
    runs = [
        one(tmp_path / "a", [row([0.5] * 4, FOUR)]),
        one(tmp_path / "b", [row([0.5] * 4, FOUR, **slow)]),
    ]
    quick, other = phases.figure(runs).axes
    assert quick.get_ylim() == other.get_ylim()
    assert "5.00 s" in quick.get_title() and "50.0 s" in other.get_title()


def test_memory_is_the_most_of_each_rank_and_the_least_and_most_of_all(tmp_path):
    peaks = [np.array([10, 30]), np.array([20])]
    rows = [
        row([0.5] * 4, FOUR, **{"ranks/peak_bytes": peak, "ranks/peak_device_bytes": 0 * peak})
        for peak in peaks
    ]
    [numbers] = memory.numbers([run := one(tmp_path / "a", rows)], "host")
    assert numbers.final.tolist() == [20, 30]
    assert [bound.tolist() for bound in numbers.spread] == [[10, 20], [30, 20]]
    assert memory.numbers([run], "device") == []


def timed(folder: Path, *staleness: list[float]) -> Run:
    """A run in virtual time: a round is 1.5 s, the staleness of its clients as given."""
    same = {
        "clients/reports": np.array([2, 1, 0, 1]),
        "rounds/staleness": 1.25,
        "rounds/consensus_distance": 2.0,
    }
    rows = [
        row(
            [0.5] * 4,
            FOUR,
            **same,
            **{"clients/staleness": np.array(each), "rounds/virtual_seconds": 1.5 * t},
        )
        for t, each in enumerate(staleness, start=1)
    ]
    return one(folder, rows, algorithm_merges=None)


def test_staleness_is_between_the_least_and_the_most_of_the_clients(tmp_path):
    [numbers] = virtual.numbers([timed(tmp_path / "a", [0.5, 3.0, NAN, 1.0], [NAN] * 4)])
    assert numbers.seconds.tolist() == [1.5, 3.0] and numbers.mean.tolist() == [1.25, 1.25]
    assert (numbers.least[0], numbers.most[0]) == (0.5, 3.0) and np.isnan(
        [numbers.least[1], numbers.most[1]]
    ).all()
    assert numbers.done.tolist() == [[0, 0], [1, 2], [2, 4]]  # fewest, mean, most
    with pytest.raises(ConfigError, match="methods in rounds"):
        virtual.numbers([one(tmp_path / "b", [row([0.5] * 4, FOUR)])])


def test_reports_of_a_population_are_added_up_by_client():
    ids = np.array([[3.0, 7.0], [7.0, NAN]])
    columns = {"clients/id": ids, "clients/reports": np.array([[1.0, 2.0], [5.0, NAN]])}
    record = Record({"architectures": ["mlp"]}, {}, columns, 2)
    assert virtual.count_reports(record).tolist() == [
        [1, 1],
        [1.5, 4],
        [2, 7],
    ]  # client 3: 1, 1; client 7: 2, 7


def test_a_graph_has_its_links_places_and_distances(tmp_path):
    rows = [row([0.5] * 4, FOUR, **{"rounds/consensus_distance": d}) for d in (NAN, 2.0)]
    run = one(tmp_path / "a", rows, algorithm_topology="ring")
    with pytest.raises(ConfigError, match="no run recorded who are neighbours"):
        topology.numbers([run])
    run.record.arrays["links"] = np.array([[0, 1], [1, 2], [2, 3], [0, 3]])
    [numbers] = topology.numbers([run])
    assert np.allclose(numbers.at, [[0, 1], [1, 0], [0, -1], [-1, 0]])
    assert (numbers.rounds.tolist(), numbers.distance.tolist()) == ([2], [2.0])
    assert np.allclose(topology.circular_layout("star", 3), [[0, 0], [0, 1], [0, -1]])


def test_methods_are_ranked_over_data_sets_by_their_means(tmp_path):
    accuracies = {"digits": (0.5, 0.7, 0.6), "cifar10": (0.2, 0.4, 0.4), "mnist": (0.8, 0.9, 0.7)}
    runs = [
        one(
            tmp_path / f"{data}{i}{seed}",
            [row([value + 0.1 * seed] * 4, FOUR)],
            algorithm_name=name,
            data_name=data,
            seed=seed,
            rounds=1,
        )
        for data, values in accuracies.items()
        for i, (name, value) in enumerate(zip(("local", "fedavg", "moon"), values, strict=True))
        for seed in (0, 1)
    ]
    result = ranks.numbers(runs)
    assert result.sets == 3 and result.absent == ()
    expected = {"FedAvg": 3.5 / 3, "MOON": 6.5 / 3, "Local": 8 / 3}  # the second has a tie: 1.5
    assert result.mean == pytest.approx(expected)
    assert list(result.mean) == list(expected)
    assert FIGURES["ranks"].load()(runs).axes[0].get_xlabel() == "mean rank on 3 data sets"
    with pytest.raises(ConfigError, match="on all data sets: 3, data sets: 1; give runs of 3"):
        ranks.numbers(runs[:6])
    with pytest.raises(ConfigError, match=r"on all data sets: 2 \(not MOON\), data sets: 3"):
        ranks.numbers(runs[:-1][:-1])


def of_methods(folder: Path, data: str, values: tuple[float, float, float], **more) -> list[Run]:
    """A finished run of each of three methods on this data, with these values."""
    names = ("local", "fedavg", "moon")
    return [
        one(
            folder / f"{data}-{name}",
            [row([value] * 4, FOUR, **more)],
            algorithm_name=name,
            data_name=data,
            rounds=1,
        )
        for name, value in zip(names, values, strict=True)
    ]


def test_a_data_set_whose_metric_is_an_error_is_ranked_by_the_lowest(tmp_path):
    runs = of_methods(tmp_path, "digits", (0.5, 0.9, 0.7))
    errors = of_methods(tmp_path, "energy", (0.5, 0.5, 0.5))
    for run, value in zip(errors, (30.0, 10.0, 20.0), strict=True):
        run.record.header["metrics"] = ["mse"]
        run.record.columns["clients/mse"] = np.full((1, 4), value)
    assert ranks.numbers([*runs, *errors]).mean == {"FedAvg": 1.0, "MOON": 2.0, "Local": 3.0}


def test_methods_that_not_all_data_sets_have_are_named_below_the_ranks(tmp_path):
    runs = [
        run for data in ("digits", "mnist") for run in of_methods(tmp_path, data, (0.5, 0.9, 0.7))
    ]
    more = {"algorithm_name": "fedprox", "data_name": "mnist", "rounds": 1}
    fedprox = one(tmp_path / "fedprox", [row([0.8] * 4, FOUR)], **more)
    note = "not ranked, because a data set has no result of them: FedProx"
    assert FIGURES["ranks"].load()([*runs, fedprox]).notes == (note,)
    assert FIGURES["ranks"].load()(runs).notes == ()
    with pytest.raises(
        ConfigError, match=r"on all data sets: 2 \(not Local, FedProx\), data sets: 2"
    ):
        ranks.numbers([*runs[1:], fedprox])


def test_unfinished_runs_are_not_ranked_and_a_note_names_them(tmp_path):
    runs = [
        run for data in ("digits", "mnist") for run in of_methods(tmp_path, data, (0.5, 0.9, 0.7))
    ]
    seed = {"algorithm_name": "fedavg", "data_name": "mnist", "seed": 8, "rounds": 3}
    begun = one(tmp_path / "begun", [row([0.0] * 4, FOUR)], **seed)
    assert ranks.numbers([*runs, begun]) == ranks.numbers(runs)
    assert FIGURES["ranks"].load()([*runs, begun]).notes == (
        f"left out: {begun.name}: 1 of 3 rounds are done",
    )
    with pytest.raises(ConfigError, match="none of 1 run is finished"):
        ranks.numbers([begun])


def with_a_failed_seed(folder: Path, name: str = "", **more: object) -> list[Run]:
    """Two finished seeds of three rounds, and one that has ended after the first."""
    rows = [row([value] * 4, FOUR) for value in (0.5, 0.6, 0.7)]
    return [
        one(folder / f"{name}{seed}", rows[: 1 if seed == 2 else 3], seed=seed, **more)
        for seed in (0, 1, 2)
    ]


@pytest.mark.parametrize("figure", [curves, learning])
def test_an_unfinished_seed_beside_finished_ones_is_a_curve_of_its_own(tmp_path, figure):
    runs = with_a_failed_seed(tmp_path)
    lines = {group.label: curve for group, curve in dict(figure.numbers(runs)).items()}
    assert list(lines) == ["FedClassAvg", f"FedClassAvg ({runs[2].name}, not finished)"]
    assert [len(curve.rounds) for curve in lines.values()] == [3, 1]
    assert [curve.seeds for curve in lines.values()] == [2, 1]


@pytest.mark.parametrize("figure", ["curves", "learning"])
def test_a_curve_that_ends_with_its_shortest_seed_has_a_note(tmp_path, figure):
    runs = with_a_failed_seed(tmp_path)
    runs[2].record.header["early"] = "the validation loss has not fallen for 1 evaluation"
    assert FIGURES[figure].load()(runs).notes == (
        "FedClassAvg is drawn up to round 1, the last that all 3 seeds have, of up to 3",
    )
    assert FIGURES[figure].load()(runs[:2]).notes == ()


@pytest.mark.parametrize("figure", ["curves", "learning", "bytes"])
def test_a_run_without_an_evaluated_round_is_no_line_of_a_figure_and_a_note_names_it(
    tmp_path, figure
):
    evaluated = one(tmp_path / "a", [row([0.5] * 4, FOUR)], seed=0)
    other = one(tmp_path / "b", [row([NAN] * 4, FOUR)], algorithm_name="fedprox")
    drawing = FIGURES[figure].load()([evaluated, other])
    [note] = drawing.notes
    assert note.startswith("left out: b: no round has been evaluated yet; evaluate.every says")
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["FedClassAvg"]
    assert not any("level line" in ax.get_xlabel() for ax in drawing.axes)
    with pytest.raises(ConfigError, match=f"^{figure}: b: no round has been evaluated yet"):
        FIGURES[figure].load()([other])


def test_clients_of_a_run_without_an_evaluated_round_have_no_place_in_a_figure(tmp_path):
    evaluated = one(tmp_path / "a", [row([0.5] * 4, FOUR)], seed=0)
    other = one(tmp_path / "b", [row([NAN] * 4, FOUR)], algorithm_name="fedprox")
    drawing = clients.figure([evaluated, other])
    assert drawing.notes[0].startswith("left out: b: no round has been evaluated yet")
    assert not drawing.legends


def test_last_rounds_of_unfinished_seeds_are_left_out_with_a_note(tmp_path):
    runs = with_a_failed_seed(tmp_path)
    note = (f"left out: {runs[2].name}: 1 of 3 rounds are done",)
    assert {strip.accuracy.tolist()[0] for strip in clients.numbers(runs)} == {0.7}
    assert sum(len(strip.accuracy) for strip in clients.numbers(runs)) == 2 * 4
    assert FIGURES["accuracies"].load()(runs).notes == note
    shared = [*runs, *with_a_failed_seed(tmp_path, "half", data_halve=0.5)[:2]]
    [line] = halved.numbers(shared)
    assert line.mean.tolist() == pytest.approx([0.7, 0.7])
    assert FIGURES["halved"].load()(shared).notes == note


def test_the_critical_difference_is_that_of_demsar_s_example():
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_methods_nearer_than_the_critical_difference_form_cliques():
    result = Ranks({"a": 1.0, "b": 1.6, "c": 2.4, "d": 4.9}, sets=14, absent=())
    assert result.cliques == [("a", "b"), ("b", "c")]  # 1.25 apart at least, to be told apart
    low = rank([{"a": 1.0, "b": 2.0}, {"b": 3.0, "c": 0.0, "a": 2.5}], high=[False, False])
    assert (low.mean, low.absent) == ({"a": 1.0, "b": 2.0}, ("c",))


def apart(labels: list) -> bool:
    """Whether texts below an axis, from left to right, leave room between them; one at least."""
    boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.x0)
    return len(boxes) > 0 and all(one.x1 + 2 < other.x0 for one, other in pairwise(boxes))


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("rounds", [1, 3])
def test_every_panel_labels_its_axes(tmp_path, name, rounds):
    runs = [
        timed(tmp_path / "a", *[[0.5, 3.0, NAN, 1.0]] * rounds),
        timed(tmp_path / "b", *[[NAN] * 4] * rounds),
    ]
    for run, share in zip(runs, (0.0, 0.5), strict=True):
        run.record.arrays["links"] = np.array([[0, 1], [1, 2]])
        run.record.columns["ranks/peak_bytes"] = np.full((rounds, 2), 1e9)
        run.record.header["job"]["data"]["halve"] = share
        run.__dict__.pop("fields", None)
    panels = [
        ax for ax in FIGURES[name].load()(runs).axes if ax.axison and ax.get_label() != "<colorbar>"
    ]
    assert panels and all(ax.get_xlabel() for ax in panels)
    assert all(ax.get_ylabel() or ax.get_shared_y_axes().get_siblings(ax) != [ax] for ax in panels)


def test_titles_name_own_data_consistently_and_distinguish_them_from_others(tmp_path):
    paths = [str(tmp_path / folder) for folder in "abc"]
    names = ["/data/left/x.npz", "/data/right/x.npz", "/data/y.npz"]
    for path, name in zip(paths, names, strict=True):
        about = header(data=name)
        if name.endswith("y.npz"):
            about["job"]["data"]["label"] = "my birds"
        run_of(Path(path), [], job=about["job"])
    loaded = load_runs(list(map(Path, paths)))
    assert [setting(run).split(",")[0] for run in loaded] == [
        "left/x.npz",
        "right/x.npz",
        "my birds",
    ]
    assert setting(load_runs([Path(paths[0])])[0]).startswith("x.npz, dirichlet")
