"""`hpcfed plot`: which pictures are drawn and where they go, and the numbers of curves and labels
by hand.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.report.figures import curves, labels, runs
from hpcfed.report.figures.command import plot
from hpcfed.report.figures.curves import Curve, figure
from hpcfed.report.figures.registry import FIGURES, select_figures
from hpcfed.storage import sweep
from hpcfed.storage.record import load
from tests.unit.test_report import HEAD, NAN, row, run_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_of(
        tmp_path / "run",
        [row([0.5, 0.3, 0.5, NAN], [0, 1, 2, 3]), row([0.8, 0.4, 0.6, NAN], [0, 1])],
    )


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_are_written_where_asked(run, tmp_path, suffix):
    curves, note, labels = plot(
        [run, run_of(tmp_path / "b", [])], out=tmp_path / f"both{suffix}"
    ).split("\n")
    assert [curves, labels] == [
        str(tmp_path / f"both{suffix}"),
        str(tmp_path / f"both-labels{suffix}"),
    ]
    assert all(Path(path).stat().st_size > 1000 for path in (curves, labels))
    assert note.startswith("curves: left out: b: no round has been evaluated yet")


def test_the_pictures_of_one_run_lie_in_its_folder(run, tmp_path):
    assert plot([run]).split("\n") == [str(run / "curves.png"), str(run / "labels.png")]
    plot([run / "results.h5", run_of(tmp_path / "b", [])], format="svg")
    assert (run / "comparison.svg").exists() and (run / "labels.svg").exists()


def test_figures_are_drawn_by_name_one_where_asked_several_with_their_names(run, tmp_path):
    assert plot([run], "fedclassavg-2", tmp_path / "a.png") == str(tmp_path / "a.png")
    both = plot([run], "curves,labels", tmp_path / "a.png").split("\n")
    assert both == [str(tmp_path / "a-curves.png"), str(tmp_path / "a-labels.png")]
    with pytest.raises(ConfigError, match="no figure 'label'; did you mean 'labels'"):
        select_figures("label")


def test_runs_are_named_by_the_fewest_distinguishing_folders(tmp_path):
    for name in ("a/run", "b/run", "run-0.1", "run-0.2"):
        (tmp_path / name).mkdir(parents=True)
        run_of(tmp_path / name, [])
    loaded = runs.load_runs([tmp_path / "run-0.1", tmp_path / "run-0.2"])
    assert [one.name for one in loaded] == ["run-0.1", "run-0.2"]
    loaded = runs.load_runs(
        [tmp_path / "a/run", tmp_path / "b/run/results.h5", tmp_path / "a/run/results.h5"]
    )
    assert [one.name for one in loaded] == ["a/run", "b/run"]
    assert [one.folder for one in loaded] == [tmp_path / "a/run", tmp_path / "b/run"]


def test_a_sweep_means_its_runs_with_at_least_one_round(tmp_path):
    fields = {"algorithm.name": "local", "rounds": 3}
    sweep.write(
        sweep.Sweep(
            tmp_path,
            [],
            "",
            1,
            "",
            tuple(sweep.Member(name, [], fields) for name in "ab"),
        )
    )
    with pytest.raises(
        CheckpointError, match="no run of this sweep has results yet; see `hpcfed status"
    ):
        runs.load_runs([tmp_path])
    run_of(tmp_path / "a", [])
    run_of(tmp_path / "b", [row([0.5, 0.3, 0.5, NAN], [0, 1, 2, 3])])
    assert [one.name for one in runs.load_runs([tmp_path, tmp_path / "b"])] == ["b"]
    picture, note = plot([tmp_path], "curves").splitlines()
    assert picture.endswith("curves.png") and note.startswith("left out: a: ")


def test_all_skips_figures_without_data_and_names_them(run, tmp_path, monkeypatch):
    def absent(runs: object) -> None:
        raise ConfigError("topology: no run recorded it\n  more")

    figures = {"labels": FIGURES["labels"], "topology": SimpleNamespace(load=lambda: absent)}
    monkeypatch.setattr("hpcfed.report.figures.registry.FIGURES", figures)
    monkeypatch.setattr("hpcfed.report.figures.command.FIGURES", figures)
    lines = plot([run], "all", tmp_path / "a.png").split("\n")
    assert lines == [str(tmp_path / "a-labels.png"), "left out: topology: no run recorded it"]
    with pytest.raises(ConfigError, match="topology: no run recorded it"):
        plot([run], "topology,labels", tmp_path / "b.png")


def test_every_figure_has_a_function_and_a_line():
    assert all(callable(entry.load()) and entry.line for entry in FIGURES.values())


def test_a_curve_adds_up_epochs_and_bytes_over_unevaluated_rounds(tmp_path):
    rows = [row([NAN] * 4, [0, 1]), row([0.2, 0.4, NAN, NAN], [2, 3])]
    curve = Curve.of(load(run_of(tmp_path / "r", rows)))
    assert (curve.rounds, curve.epochs, curve.traffic) == ([2], [1.0], [2 * HEAD])
    assert (curve.mean, curve.std) == (pytest.approx([0.3]), pytest.approx([0.1]))


def test_labels_are_shown_once_per_partition(tmp_path):
    paths = [run_of(tmp_path / name, []) for name in ("a", "b")]
    numbers = labels.numbers(runs.load_runs([*paths, run_of(tmp_path / "c", [], data="mnist")]))
    assert [one.title for one in numbers] == [
        f"{d}, dirichlet(0.5), 4 clients" for d in ("digits", "mnist")
    ]
    assert numbers[0].counts.tolist() == [[5, 0], [1, 4], [0, 9], [2, 2]]


def test_a_picture_that_cannot_be_written_is_an_error_that_says_where(run, tmp_path):
    with pytest.raises(ConfigError, match=r"results.h5/curves\.png: cannot write.*Not a directory"):
        plot([run], out=run / "results.h5" / "curves.png")
    plot([run], out=tmp_path / "new" / "folder" / "curves.png")
    assert (tmp_path / "new" / "folder" / "curves.png").stat().st_size
    with pytest.raises(ConfigError, match=r"no picture format '\.txt'.*\.png"):
        plot([run], out=tmp_path / "curves.txt")
    with pytest.raises(CheckpointError, match="absent"):
        plot([tmp_path / "absent"])


def test_seeds_of_a_method_are_one_curve_whose_label_defines_the_band(tmp_path):
    rows = [row([0.5, 0.3, 0.5, NAN], [0, 1, 2, 3]), row([0.8, 0.4, 0.6, NAN], [0, 1])]
    loaded = runs.load_runs([run_of(tmp_path / str(seed), rows) for seed in (0, 1)])
    for seed, one in enumerate(loaded):
        loaded[seed] = one.with_fields(one.fields | {"seed": seed})
    [curve] = curves.numbers(loaded).values()
    assert curve.seeds == 2
    assert figure(loaded).axes[0].get_ylabel().endswith("mean ± std over 2 seeds")
    loaded[0].figure_band = "clients"
    assert figure(loaded).axes[0].get_ylabel().endswith("mean ± std over clients of 2 seeds")
    assert figure(loaded[1:]).axes[0].get_ylabel().endswith("mean ± std over clients")
