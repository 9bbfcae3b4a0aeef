"""The benchmarks of `make bench`: each can be run, and the table says what their files say."""

import json
import os
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path

import pytest

from hpcfed.config.files import EMBEDDED
from hpcfed.config.load import load as load_job
from hpcfed.config.methods import ALGORITHMS
from hpcfed.core.exit_status import RESUME_ME
from hpcfed.main import main
from hpcfed.storage.record import Record
from hpcfed.storage.record import load as read
from tests import changing, forked, limits
from tests.mpirun import environment

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(FOLDER), str(FOLDER / "htfllib")]

import accuracy  # noqa: E402
import archive  # noqa: E402
import attacks  # noqa: E402
import h5py  # noqa: E402
import methods  # noqa: E402
import numpy as np  # noqa: E402
import own  # noqa: E402
import remake  # noqa: E402
import report  # noqa: E402
import runs  # noqa: E402
import setting  # noqa: E402
import studies  # noqa: E402
import uploads  # noqa: E402
from apart import Apart  # noqa: E402
from launch import run_within  # noqa: E402
from paired import RESULTS, Ratio, Row  # noqa: E402


def test_each_benchmark_can_be_imported_and_has_a_main():
    code = (
        "import importlib, sys; print([callable(importlib.import_module(name).main) for name "
        "in sys.argv[1:]])"
    )
    output = subprocess.run(
        [forked.python(), "-c", code, *report.CPU],
        cwd=FOLDER,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
    )
    assert output.stdout.strip() == str([True] * len(report.CPU)), output.stderr


def test_make_bench_runs_the_rows_of_the_table():
    line = re.search(r"^BENCH := (.*)$", (FOLDER.parent / "Makefile").read_text(), re.MULTILINE)
    assert line and tuple(line[1].split()) == report.CPU


@pytest.mark.skipif(not (RESULTS / "table.md").exists(), reason="no benchmark has been run")
def test_the_table_is_composed_of_the_files():
    assert (RESULTS / "table.md").read_text() == report.compose(RESULTS)


def test_a_row_comes_back_from_its_file():
    row = Row("a over b", Ratio(1.5, 1.0, 2.0), most=1.4, details={"n": 3})
    stored = {
        "what": "a over b",
        "ratio": [1.5, 1.0, 2.0],
        "most": 1.4,
        "least": None,
        "details": {"n": 3},
        "met": False,
    }
    assert report.row(json.loads(json.dumps(stored))) == row and not row.met


def test_work_in_a_separate_process_does_not_change_this_one():
    with Apart(changing.change) as other:
        assert other() is True and "CHANGED" not in os.environ


@pytest.fixture(scope="module")
def unpacked():
    """The result files of all studies lie where benchmarks look for them."""
    for name in archive.STUDIES:
        archive.unpack(remake.RESULTS / name)


@pytest.mark.parametrize("name", remake.SHOWN)
def test_results_that_are_shown_are_of_the_jobs_that_their_command_would_run(unpacked, name: str):
    planned = {run.kept.resolve(): run for run in remake.SHOWN[name][0]()}
    existing = {path.resolve() for path in (remake.RESULTS / name).glob("*.h5")}
    assert existing <= set(planned) if name in remake.GROWS else existing == set(planned)
    assert {path.name: lines for path in existing if (lines := remake.stale(planned[path]))} == {}


def test_a_result_of_another_job_is_stale_with_the_fields_that_differ(unpacked):
    run = remake.SHOWN["demo"][0]()[0]
    assert remake.stale(run) == []
    other = run._replace(flags=(*run.flags, "--rounds", "3", "--local.lr", "0.1"))
    assert remake.stale(other) == ["local.lr was 0.0005, is 0.1", "rounds was 80, is 3"]
    gone = run._replace(kept=run.kept.with_name("none.h5"))
    assert remake.stale(gone) == ["there is no such file"]


def test_the_readmes_sweep_is_the_one_that_remakes_its_table():
    readme = (FOLDER.parent / "README.md").read_text()
    *words, rounds, number = remake.HEART
    values = f"--algorithm.name local,fedavg,ditto --seed 0,1,2 {rounds} {number}"
    assert f"hpcfed sweep {' '.join(words)} {values}" in readme
    stems = [run.kept.stem for run in remake.SHOWN["heart"][0]()]
    assert stems == [f"{name}-seed{s}" for name in ("local", "fedavg", "ditto") for s in (0, 1, 2)]


def test_every_folder_of_results_can_be_remade(unpacked):
    folders = {
        str(path.parent.relative_to(remake.RESULTS)) for path in remake.RESULTS.rglob("*.h5")
    }
    assert set(remake.SHOWN) - set(remake.GROWS) <= folders <= set(remake.SHOWN)


class InProcess(runs.Processes):
    """Runs in this process; `words` keeps their command lines."""

    def __init__(self):
        super().__init__()
        self.words = []

    def run(self, words, env):
        self.words.append(words)
        return main(words[3:]), ""


TINY = ["--models.mix", "mlp", "--data.train_limit", "200", "--clients", "2", "--quiet"]
TINY += ["--evaluate.every", "1"]


def test_a_run_that_was_stopped_is_gone_on_with_and_has_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RESULTS", tmp_path / "kept")
    begun, complete = (
        runs.Run(EMBEDDED, (*TINY, "--rounds", "2"), tmp_path / "kept" / f"{name}.h5")
        for name in ("begun", "whole")
    )
    out = tmp_path / "doing" / "begun"
    main([str(EMBEDDED), *TINY, "--rounds", "1", "--out", str(out)])
    processes = InProcess()
    for it in (begun, complete, complete):  # what is kept already is not run again
        assert runs.run(it, tmp_path / "doing", processes) is None
    assert [("--resume" in words) for words in processes.words] == [True, False]
    assert not out.exists() and not list((tmp_path / "kept").glob("*.part"))
    columns = [read(it.kept).columns for it in (begun, complete)]
    assert columns[0].keys() == columns[1].keys()
    for name in ("clients/accuracy", "clients/train_loss", "clients/up"):
        assert np.array_equal(columns[0][name], columns[1][name], equal_nan=True)


def test_a_signal_is_handed_on_to_the_runs_and_no_other_is_started():
    code = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    processes = runs.Processes()
    with processes.handle_signals():
        assert processes.run([sys.executable, "-c", code], dict(os.environ)) == (143, "")
    assert processes.stopping
    assert processes.run([sys.executable, "-c", "1 / 0"], {}) == (RESUME_ME, "")


def test_each_row_of_the_evidence_is_a_job_that_hpcfed_takes():
    for name, study in studies.STUDIES.items():
        for row in study.rows:
            it = studies.tuning_run(name, row, study.rates[0])
            job = load_job([str(it.job), *it.flags], environ={})
            assert job.evaluate.validation == 0.1, (name, row)


def test_a_row_waits_for_all_runs_that_choose_its_rate_and_takes_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "KEPT", tmp_path)
    scores = {"0.0003": 0.5, "0.001": 0.7, "0.003": 0.7}
    monkeypatch.setattr(studies, "validation", lambda path: scores[path.stem.rpartition("-lr")[2]])
    row = "local"
    for rate in scores:
        assert studies.planned_run("cifar10", row, 0) is None
        path = studies.tuning_run("cifar10", row, rate).kept
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert studies.choice("cifar10", row) == "0.001"  # the lower one of equals
    assert studies.planned_run("cifar10", row, 0).flags[-4:] == (
        "--local.lr",
        "0.001",
        "--seed",
        "0",
    )


def test_each_method_has_a_row_that_hpcfed_takes_or_a_reason_why_not():
    rows = methods.rows().values()
    assert {row.method for row in rows} == set(ALGORITHMS) - set(methods.ELSEWHERE)
    for row in rows:
        job = load_job([str(methods.JOB), *methods.flags(row, "cifar10", 0)], environ={})
        kinds = {"one": (1, 1), "five": (5, 1), "three widths": (1, 3), "two depths": (2, 1)}
        is_single = job.models.mix == (row.models,)  # one architecture that other rows do not have
        counts = len(set(job.models.mix)), len(job.models.widths)
        assert is_single or counts == kinds[row.models], row.label


def test_each_row_of_the_tables_on_own_data_is_a_job_that_hpcfed_takes():
    for name in own.TABLES:
        for run in own.planned(name, seeds=[0]):
            job = load_job([str(run.job), *run.flags], environ={})
            assert run.flags[1] == job.algorithm.name


def test_a_table_on_own_data_shows_its_cells_beside_the_papers_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(own, "KEPT", tmp_path)
    (tmp_path / "fesem").mkdir()
    for seed, score in enumerate((0.5, 0.75)):
        path = own.path("fesem", "FedAvg", seed)
        path.write_text(str(score))
    monkeypatch.setattr(own, "last", lambda path, column: 100 * float(path.read_text()))
    lines = own.markdown("fesem").splitlines()
    assert "| FedAvg | 62.50 ± 17.68 | 84.9 |" in lines
    assert "| FedProx | not run yet | 72.6 |" in lines


def test_beside_htfllib_each_client_has_its_classes_and_no_example_is_dealt_twice():
    y = np.arange(4000) % 10
    rows = setting.shares(y, each=20)
    assert len(np.unique(np.concatenate(rows))) == setting.CLIENTS * 20 * setting.OWN_CLASSES
    for k, own_rows in enumerate(rows):
        want = sorted((k + i) % 10 for i in range(setting.OWN_CLASSES))
        assert np.unique(y[own_rows], return_counts=True)[1].tolist() == [20] * len(want)
        assert np.unique(y[own_rows]).tolist() == want


def test_a_row_is_compared_with_fedavg_seed_by_seed():
    row = methods.row("fedprox")
    method_path, base = (
        [
            {"accuracy": a, "down": 3.0 * k, "up": k, "seconds": 2.0 * k, "cpu": "of one kind"}
            for a in accuracies
        ]
        for k, accuracies in ((2, (0.5, 0.75)), (1, (0.25, 0.25, 0.0)))
    )
    entry = methods.entry(row, method_path, base, {"of one kind": 2.0})
    assert (entry["gain"], entry["bytes_ratio"], entry["seconds_ratio"]) == (0.375, 2.0, 2.0)
    assert "seconds_ratio" not in methods.entry(row, method_path, base, {"of another": 2.0})


def test_the_last_examples_of_each_class_are_moved_to_the_tests(tmp_path):
    folder = prepare_in_the_benchmark(tmp_path)
    with h5py.File(folder) as file:
        assert file["train/labels"][()].tolist() == [0] * 3 + [1] * 3
        assert file["test/labels"][()].tolist() == [0, 0, 1, 1, 7]
        assert file["test/images"][()].ravel().tolist() == [3, 4, 8, 9, 77]


def prepare_in_the_benchmark(folder: Path) -> Path:
    """The file that evidence/run.py makes of ten examples of two classes and one test example."""
    with h5py.File(folder / "cifar10.h5", "w") as file:
        file.attrs["classes"] = json.dumps(["a", "b"])
        file["train/images"] = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
        file["train/labels"] = [0] * 5 + [1] * 5
        file["test/images"], file["test/labels"] = np.full((1, 1, 1, 1), 77, np.uint8), [7]
    spec = spec_from_file_location("evidence_run", FOLDER / "evidence" / "run.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HELD_OUT = 2
    return module.prepare(folder, folder / "made")["cifar10.toml"] / "cifar10.h5"


def test_a_command_that_takes_too_long_is_ended_with_its_children_and_its_output_is_kept():
    """The second process holds the output open: this call returns when it is gone, too."""
    started = ["sh", "-c", "echo begun; sleep 3600 & wait"]
    assert run_within(0.5, started, os.environ) == (None, "begun\n")
    assert run_within(limits.COMMAND, ["sh", "-c", "echo done; exit 3"], os.environ) == (
        3,
        "done\n",
    )


@pytest.mark.parametrize(
    ("commit", "short"), [("0123456789abcdef", "01234567"), ("0123456789abcdef+", "01234567+")]
)
def test_the_commit_of_a_row_tells_whether_files_differed(commit, short):
    assert runs.short_commit(Record({"commit": commit}, {}, {}, rounds=0)) == short


def test_a_study_of_uploads_without_runs_writes_neither_table_nor_picture(tmp_path, monkeypatch):
    cell = uploads.Cell("compression", "cifar10", "fedavg", "int8", 0)
    line = {"accuracy": 0.5, "up": 2e3, "commit": "0123abcd", "flags": uploads.flags(cell)}
    monkeypatch.setattr(uploads, "KEPT", tmp_path)
    monkeypatch.setattr(uploads.grid, "read", lambda file: {cell.key: line})
    monkeypatch.setattr(uploads.grid, "fill", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["uploads.py"])
    uploads.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compression.md", "compression.png"]
    text = (tmp_path / "compression.md").read_text()
    assert "| 0.500 (2.00 kB) |" in text and "1 of 222 runs. Commits: 0123abcd." in text
    assert "fashion-mnist" not in text


def test_attackers_of_a_smaller_share_are_among_those_of_a_larger_one():
    for seed in attacks.SEEDS:
        few, many = (attacks.attackers(share, seed) for share in attacks.SHARES)
        assert len(few) == 2 and len(many) == 6 and few < many


def test_the_table_of_attacks_compares_the_same_clients_and_says_how_many_runs_diverged(
    tmp_path, monkeypatch
):
    """Without an attack attackers have 0 and the others 0.5 and 0.7, half of them each: they
    have 0.6, and lose 0.1 in the only run that did not diverge.
    """
    rows = {}
    for seed in attacks.SEEDS:
        bad = attacks.attackers(0.3, seed)
        honest = [k for k in range(attacks.CLIENTS) if k not in bad]
        values = [0.0 if k in bad else 0.5 if k in honest[::2] else 0.7 for k in range(20)]
        clean = {"accuracies": values, "accuracy": 0.42, "success": 0.03, "up": 2e3}
        rows[attacks.key("fedavg", "none", attacks.NOBODY, 0.0, seed)] = clean | {"commit": "01"}
        rows[attacks.key("fedavg", "none", "alie", 0.3, seed)] = {"diverged": True}
        rows[attacks.key("fedavg", "median", "alie", 0.3, seed)] = {"diverged": True}
    score = {"accuracy": 0.5, "worst_tenth": 0.4, "commit": "01"}
    rows[attacks.key("fedavg", "none", "alie", 0.3, 0)] = score
    text = "\n".join(attacks.table(rows))
    assert "| honest at 30%, no attack | 0.600 (0.50) / 0.03 |" in text
    assert "| 30%, alie | 0.500 (0.40), diverged 2/3 | diverged 3/3 |" in text
    assert "9 of 1590 runs" in text
    runs_of_alie = attacks.seeds(rows, "fedavg", "none", "alie", 0.3)
    assert attacks.cost(rows, "fedavg", runs_of_alie) == pytest.approx(-0.1)
    monkeypatch.setattr(attacks, "KEPT", tmp_path)
    attacks.draw(rows)
    assert (tmp_path / "table.png").exists()


def test_the_table_of_precisions_has_differences_of_pairs_with_their_interval(
    tmp_path, monkeypatch
):
    """Differences of +1 and -1 points: the half interval is 12.706 * sqrt(2) / sqrt(2)."""
    accuracies = {("float32", 0): 0.5, ("bf16", 0): 0.51, ("float32", 1): 0.6, ("bf16", 1): 0.59}
    accuracies[accuracy.OF_CONTROL, 1] = 0.605
    rows = {
        accuracy.key("cifar10", "fedproto", precision, seed): {
            "accuracy": value,
            "commit": "0123abcd",
            "curve": {"10": value / 2, "60": value},
        }
        for (precision, seed), value in accuracies.items()
    }
    rows[accuracy.key("cifar10", "fedavg", "bf16", 0)] = {"diverged": True}
    rows[accuracy.key("cifar10", "fedclassavg", "bf16", 0)] = rows["cifar10/fedproto/bf16/0"]
    monkeypatch.setattr(accuracy, "KEPT", tmp_path)
    monkeypatch.setattr(accuracy.grid, "read", lambda file: rows)
    monkeypatch.setattr(accuracy.grid, "fill", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["accuracy.py"])
    accuracy.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "table.md"]
    text = (tmp_path / "table.md").read_text()
    assert "| cifar10 | fedproto | 2 | 55.00 | 55.00 | +0.00 ± 12.71 (1.00) | +0.50 |" in text
    assert "| all | all | 2 |" in text and "| fedavg |" not in text
    assert "7 of 42 runs. Commits: 0123abcd." in text


def test_pairs_of_precisions_differ_in_the_precision_alone():
    cells = list(accuracy.cells(accuracy.SEEDS, accuracy.DATA, list(accuracy.METHODS)))
    flags = {cell.key: cell.flags for cell in cells}
    assert len(cells) == len(flags) == 42
    for data, method, seed in product(accuracy.DATA, accuracy.METHODS, accuracy.SEEDS):
        first, second = (flags[accuracy.key(data, method, p, seed)] for p in accuracy.PRECISIONS)
        assert first.replace("float32", "bf16") == second != first


def test_a_curve_has_the_mean_over_clients_of_each_evaluated_round():
    scores = np.full((4, 2), np.nan)
    scores[1], scores[3] = [0.5, np.nan], [0.5, 0.75]
    assert accuracy.curve(scores) == {"2": 0.5, "4": 0.625}
