"""`hpcfed.sweep`, `table`, `compare`, `plot` and `report` as a notebook uses them."""

import csv
import io
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from matplotlib.figure import Figure
from torch import nn

import hpcfed
from hpcfed.core.errors import ConfigError, HpcfedError
from hpcfed.launch.given import Call
from hpcfed.launch.sweep.python import flags
from hpcfed.report import compare as comparisons
from hpcfed.report import table as tables
from hpcfed.report.python import report as write_page
from hpcfed.storage.sweep import read
from tests.unit.test_table import run, to_end


class Mine(hpcfed.RoundBased):
    """FedAvg with a parameter that does nothing."""

    strength: float = 1.0


class Two(hpcfed.RoundBased):
    """FedAvg with two parameters."""

    a: float = 0.0
    b: float = 0.0


def build(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


def words(**fields: object) -> list[str]:
    return flags(Call(None, {}), fields)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        run(
            tmp_path / f"{method}{seed}",
            to_end(0.5 + 0.1 * (method == "fedavg")),
            method=method,
            seed=seed,
        )
        for method in ("fedavg", "local")
        for seed in range(3)
    ]


def test_a_call_is_the_command_of_the_same_words():
    assert words(seed=[0, 1], rounds=5, quiet=True) == [
        *("--seed", "0,1", "--rounds", "5", "--quiet", "true")
    ]
    assert words(data={"alpha": [0.1, 1.0], "name": ["digits", "mnist"]}) == [
        *("--data.alpha", "0.1,1.0", "--data.name", "digits,mnist")
    ]
    assert words(model=["mlp", "cnn"]) == ["--models.mix", "mlp,cnn"]
    assert words(models={"mix": [["mlp"], ["mlp", "cnn"]]}) == ["--models.mix", "mlp;mlp,cnn"]
    assert words(algorithm=["fedavg", {"name": "fedprox", "mu": [0.1, 1]}]) == [
        *("--algorithm.name", "fedavg,fedprox", "--fedprox.mu", "0.1,1")
    ]
    mine = f"{__name__}:Mine"
    assert words(algorithm=[Mine(strength=2), "local"]) == [
        *("--algorithm.name", f"{mine},local", f"--{mine}.strength", "2.0")
    ]
    with pytest.raises(ConfigError, match="Two are not all combinations of a and b"):
        words(algorithm=[Two(a=1, b=2), Two(a=2, b=1)])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": []}, r"seed = \[\]: .* give at least one, or remove seed"),
        ({"local": {"lr": [], "epochs": 2}}, r"local.lr = \[\]"),
        ({"evaluate": {"metrics": []}}, r"evaluate.metrics = \[\]"),
        ({"algorithm": []}, r"algorithm = \[\]"),
        ({"algorithm": {"name": "fedprox", "mu": []}}, r"algorithm.mu = \[\]"),
        (
            {"local": [{"lr": 0.1}, {"lr": 0.2, "epochs": 2}]},
            r'local: a list of tables; give the field itself a list, as in local = {"lr": \[...\]}',
        ),
        ({"data": [{"name": "digits"}, {"name": "mnist"}]}, "data: a list of tables"),
    ],
)
def test_a_sweep_refuses_empty_lists_and_lists_of_tables(fields, message):
    with pytest.raises(ConfigError, match=message):
        words(**fields)


def test_a_sweep_in_the_process_is_continued_by_the_same_call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    g = np.random.default_rng(0)
    data = (g.normal(size=(60, 8)).astype(np.float32), g.integers(0, 3, 60))
    lent = type("Lent", (Mine,), {"__module__": "__main__", "__doc__": "Of a notebook."})

    def sweep(**more: object) -> list[hpcfed.Run]:
        fields = {"algorithm": ["local", lent(strength=2.0)], "seed": [0, 1]} | more
        return hpcfed.sweep(
            model=build, data=data, clients=2, rounds=1, quiet=True, out="s", **fields
        )

    runs = sweep()
    assert [one.folder.name for one in runs] == [
        *("local_seed=0", "local_seed=1", "Lent_strength=2.0_seed=0", "Lent_strength=2.0_seed=1")
    ]
    times = [one.record.path.stat().st_mtime_ns for one in runs]
    capsys.readouterr()
    more = sweep(seed=[0, 1, 2])
    printed = capsys.readouterr().out.splitlines()  # of the new ones
    assert [line.partition(" ")[0] for line in printed] == ["4:", "4:", "5:", "5:"]
    assert printed[0].endswith("seed=2: begins (run 5 of 6)") and ": done, " in printed[1]
    assert [one.record.path.stat().st_mtime_ns for one in more if one.fields["seed"] < 2] == times
    assert read(Path("s")).runs[0].fields["data.name"].startswith("arrays-")
    frame = hpcfed.table(more, names={lent: "Ours"})
    assert frame["seeds"].tolist() == [3] * len(frame) and "Ours" in frame.index


def test_a_failed_run_does_not_end_the_others_and_equal_reasons_are_said_once(tmp_path):
    lent = type("Lent", (Mine,), {"__module__": "__main__", "__doc__": "Of a notebook."})
    fields = {"clients": [2, 100_000], "data": {"train_limit": 100}, "rounds": 1, "model": "mlp"}
    with pytest.raises(HpcfedError, match="1 of 2 runs failed") as error:
        hpcfed.sweep(algorithm=lent, out=tmp_path / "s", quiet=True, **fields)
    assert str(error.value).count("clients=100000") == 1
    assert hpcfed.load(tmp_path / "s" / "clients=2").finished


def test_frames_have_the_numbers_of_the_commands(runs):
    frame = hpcfed.table(runs)
    assert frame.loc["FedAvg", "mean"] == pytest.approx(0.6)
    assert frame.index.tolist() == ["Local", "FedAvg"] and frame.attrs["caption"].startswith("Test")
    text = list(csv.DictReader(io.StringIO(tables.table(runs, format="csv"))))
    assert [float(row["mean"]) for row in text] == frame["mean"].tolist()
    frame = hpcfed.compare(runs, baseline="local")
    text = list(csv.DictReader(io.StringIO(comparisons.compare(runs, "csv", baseline="local"))))
    assert [float(row["p"]) for row in text] == frame["p"].tolist()
    assert frame.loc["FedAvg", "difference"] == pytest.approx(0.1)
    others = hpcfed.table([*runs, run(runs[0].parent / "m", to_end(0.3), data="mnist")])
    assert others["mnist", "mean"].tolist()[1] == pytest.approx(0.3)


def test_numbers_in_percent_are_so_in_text_frames_and_csv_but_not_those_of_other_units(runs):
    def deviating(percent: bool, **more: str) -> list[float]:
        frame = hpcfed.table(runs, percent=percent, **more)
        text = hpcfed.table(runs, percent=percent, format="csv", **more)
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [float(row["mean"]) for row in rows] == frame["mean"].tolist()
        assert [row["deviation"] for row in rows if row["deviation"]] == [
            repr(number) for number in frame["std"] if number == number
        ]
        return frame.loc["FedAvg", ["mean", "std"]].tolist()

    assert deviating(False, deviation="clients") == pytest.approx([0.6, 0.1])
    assert deviating(True, deviation="clients") == pytest.approx([60, 10])
    assert deviating(True, value="up") == pytest.approx(deviating(False, value="up"), nan_ok=True)
    frame = hpcfed.compare(runs, baseline="local", percent=True)
    plain = hpcfed.compare(runs, baseline="local")
    shares = ["mean", "baseline_mean", "difference", "low", "high"]
    assert frame.loc["FedAvg", shares].tolist() == pytest.approx(
        [100 * number for number in plain.loc["FedAvg", shares]]
    )
    assert frame.drop(columns=shares).equals(plain.drop(columns=shares))
    text = hpcfed.compare(runs, baseline="local", percent=True, format="csv")
    [row] = csv.DictReader(io.StringIO(text))
    assert float(row["difference"]) == frame.loc["FedAvg", "difference"]


def test_arguments_may_be_lists_numbers_and_functions_where_the_command_has_words(runs, tmp_path):
    assert hpcfed.table(runs, rows=["seed"], columns=("algorithm.name",)).equals(
        hpcfed.table(runs, rows="seed", columns="algorithm.name")
    )
    page = tmp_path / "r.html"
    for clients in (1, np.int64(1), np.array([1])):
        write_page(runs, out=page, clients=clients)
        assert [path.name for path in (tmp_path / "r-clients").iterdir()] == ["client-1.html"]
    assert hpcfed.table(runs, metric=build).attrs["caption"].startswith("Test build of")
    assert hpcfed.compare(runs, baseline=runs[-1]).index.tolist() == ["FedAvg"]
    assert hpcfed.compare(runs, baseline=hpcfed.load(runs[-1])).index.tolist() == ["FedAvg"]


def test_arguments_of_other_types_are_one_message(runs, tmp_path):
    def errors(function, *arguments: object, **options: object) -> str:
        with pytest.raises(ConfigError) as error:
            function(*arguments, **options)
        return str(error.value)

    for function in (hpcfed.table, hpcfed.compare, hpcfed.plot, write_page):
        assert "runs: a int; give paths of runs" in errors(function, 5)
        for name, value in (("metric", 5), ("names", 5), ("names", ["a"])):
            assert errors(function, runs, **{name: value}).startswith(f"{name} = ")
    for name in ("rows", "columns", "value", "deviation", "choose", "layout", "format"):
        assert errors(hpcfed.table, runs, **{name: 5}).startswith(f"{name} = 5: give ")
    for name in ("value", "baseline", "format"):
        assert errors(hpcfed.compare, runs, **{name: 5}).startswith(f"{name} = 5: give ")
    for name in ("figure", "band", "title", "fonts"):
        assert errors(hpcfed.plot, runs, **{name: 5}).startswith(f"{name} = 5: give ")
    assert "rows = 5" in errors(hpcfed.table, runs, rows=["seed", 5])
    assert errors(write_page, runs, clients=0.5).startswith("clients = 0.5: give ")
    assert "size 5: give width and height" in errors(hpcfed.plot, runs, size=5)
    for function in (hpcfed.load, hpcfed.load_model):
        assert "5: give the path of a run" in errors(function, 5)
    for function in (hpcfed.table, hpcfed.compare, hpcfed.plot, write_page):
        assert errors(function, runs, out=5).startswith("out = 5: give ")
    assert "no deviation 'client'; did you mean 'clients'" in errors(
        hpcfed.table, runs, deviation="client"
    )


def test_text_and_files_are_those_of_the_commands_and_need_no_pandas(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert hpcfed.table(runs, format="latex") == tables.table(runs, format="latex")
    out = tmp_path / "t.tex"
    assert hpcfed.compare(runs, format="latex", out=out) == str(out) and out.exists()
    with pytest.raises(ConfigError, match=r"needs the package pandas.*hpcfed\[export\]"):
        hpcfed.table(runs)
    with pytest.raises(ConfigError, match="no format 'tex'; did you mean 'text'"):
        hpcfed.table(runs, format="tex")


def test_a_figure_is_displayed_by_a_notebook_and_its_fonts_are_embedded_in_pdf(runs, tmp_path):
    out = tmp_path / "f.pdf"
    figure = hpcfed.plot(runs, size=(3, 2), title="T", fonts="serif", out=out, names={"local": "L"})
    assert isinstance(figure, Figure) and figure._repr_png_().startswith(b"\x89PNG")
    assert figure.get_size_inches().tolist() == [3, 2]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["L", "FedAvg"]
    assert b"/FontFile2" in out.read_bytes() and b"/Type3" not in out.read_bytes()
    assert len(hpcfed.plot(runs[0], "curves,accuracies")) == 2
    with pytest.raises(ConfigError, match="--size 3: give width and height in inches"):
        hpcfed.plot(runs, size="3")
    with pytest.raises(ConfigError, match="no font 'Tymes'"):
        hpcfed.plot(runs, fonts="Tymes")
    with pytest.raises(ConfigError, match="--band seeds, but labels shows none"):
        hpcfed.plot(runs, "labels", band="seeds")


def test_no_figure_is_without_the_display_in_a_notebook():
    modules = (Path(hpcfed.__file__).parent / "report/figures").glob("*.py")
    assert [path.name for path in modules if " Figure(" in path.read_text("utf-8")] == []


def test_a_page_is_written_whether_its_package_is_loaded_or_not(runs, tmp_path):
    before, after = hpcfed.__getattr__("report"), hpcfed.report
    assert before is not after and isinstance(after, ModuleType)
    pages = [write(runs[0], out=tmp_path / "r.html") for write in (before, after)]
    assert pages == [tmp_path / "r.html"] * 2
    assert (tmp_path / "r.html").stat().st_size > 1000


def test_a_sweep_of_one_value_is_refused_in_the_words_of_python():
    with pytest.raises(ConfigError, match=r"give a list, as in seed=\[0, 1, 2\]"):
        hpcfed.sweep(algorithm="fedavg", rounds=2)


@pytest.mark.parametrize("name", ["ranks", "at_once", "trials"])
def test_a_sweep_refuses_numbers_below_one(name):
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} 0: give at least 1"):
        hpcfed.sweep(seed=[0, 1], **{name: 0})


def test_what_is_no_run_is_one_message():
    with pytest.raises(ConfigError, match="a int; give paths of runs or sweeps"):
        hpcfed.table([3])
    with pytest.raises(ConfigError, match="the list is empty"):
        hpcfed.plot([])
