"""Searches of a sweep, and how a table chooses values: by validation, never by test examples."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hpcfed
from hpcfed.core.errors import ConfigError, HpcfedError
from hpcfed.core.exit_status import DONE, FAULT
from hpcfed.launch.sweep import command, python, search
from hpcfed.launch.sweep.grid import define
from hpcfed.launch.sweep.pool import Outcome, Pool
from hpcfed.launch.sweep.search import Range, Trial, draw, parse
from hpcfed.report.table import table
from hpcfed.results.state import member
from hpcfed.storage import sweep as store
from hpcfed.storage.results import Results
from tests.unit.test_table import job

WORDS = ["--models.mix", "mlp", "--algorithm.name", "fedavg", "--evaluate.validation", "0.2"]
LR = ["--local.lr", "log:0.001..0.1"]


def test_a_range_is_read_and_its_places_are_within_it():
    assert parse("f", "0.5..2") == Range(0.5, 2.0)
    assert parse("f", "log:1e-4..1e-2") == Range(1e-4, 1e-2, log=True)
    assert parse("f", "1..3") == Range(1.0, 3.0, integer=True)
    assert parse("f", "data/../x.npz") is None and parse("f", "0.1,0.2") is None
    assert [parse("f", "1..3").place(u) for u in (0.0, 0.34, 0.999, 1.0)] == ["1", "2", "3", "3"]
    assert [Range(1e-4, 1e-2, log=True).place(u) for u in (0, 0.5, 1)] == [
        "0.0001",
        "0.001",
        "0.01",
    ]
    with pytest.raises(ConfigError, match="empty range"):
        parse("f", "log:0..1")


def test_a_value_has_as_many_digits_as_keep_it_within_its_range():
    narrow, near_one = Range(0.12344, 0.12352), Range(0.9, 0.99999)
    assert [narrow.place(u) for u in (0, 0.5, 1)] == ["0.12344", "0.1235", "0.1235"]
    assert near_one.text(0.999985) == "0.99999" and near_one.text(0.9512345) == "0.9512"
    for span in (narrow, near_one, Range(1e-9, 1.1e-9), Range(-0.12344, -0.1234)):
        values = [float(span.place(u)) for u in np.linspace(0, 1, 1001)]
        assert span.low <= min(values) and max(values) <= span.high


def random(n: int, *more: str) -> store.Sweep:
    spans = {"local.lr": Range(1e-3, 1e-1, log=True)}
    values = [draw(spans, i) for i in range(n)]
    return define([*WORDS, *LR, *more], Path("s"), 1, "", (), values)


def test_a_random_search_runs_each_trial_with_all_combinations_and_more_trials_add_runs():
    few, many = random(2, "--seed", "0,1"), random(3, "--seed", "0,1")
    assert len(few.runs) == 4 and many.runs[:4] == few.runs
    rates = [run.fields["local.lr"] for run in many.runs]
    assert rates[::2] == rates[1::2] and len(set(rates)) == 3
    assert all(1e-3 <= rate <= 1e-1 for rate in rates)
    assert [run.fields["seed"] for run in few.runs] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "words, ranges, message",
    [
        ([*WORDS, *LR], {}, "is a range, from which a search draws"),
        ([*WORDS, "--seed", "0,1"], {"search": "random"}, "no field has a range"),
        ([*WORDS[:-1], "0", *LR], {"search": "random"}, "add --evaluate.validation 0.2"),
        ([*WORDS, "--seed", "0,1"], {"trials": 3}, "add --search random"),
        ([*WORDS, *LR], {"search": "optuna", "dry_run": True}, "take --search random"),
        (
            [*WORDS, *LR, "--local.batch", "8,16"],
            {"search": "optuna"},
            "local.batch has several values",
        ),
        (["runs/x"], {"search": "random"}, "continues with the runs it has"),
    ],
)
def test_a_search_without_ranges_is_refused(words, ranges, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        command.sweep(words, out=tmp_path / "s", **ranges)


def test_a_search_by_optuna_of_several_job_files_is_refused(tmp_path):
    files = [tmp_path / name for name in ("a.toml", "b.toml")]
    for file in files:
        file.write_text('algorithm.name = "fedavg"\n')
    with pytest.raises(
        ConfigError, match=r"one job at a time, but .*a\.toml and .*b\.toml are two"
    ):
        command.sweep([*map(str, files), *LR], out=tmp_path / "s", search="optuna")


class Finished:
    """Stands for a pool: each run gets results whose validation score is best near lr = 0.01."""

    def __init__(self, sweep: store.Sweep, at_once: int, hopeless: object = None):
        self.sweep = sweep

    def run(self, numbers):
        return [self.one(self.sweep.runs[j]) for j in numbers]

    def one(self, run: store.Member):
        good = 1 - abs(np.log10(run.fields["local.lr"]) + 2) / 2
        finish(self.sweep.folder / run.name, good, 0.5, local_lr=run.fields["local.lr"])
        return command.Outcome(run, command.DONE, "")


def finish(
    folder: Path, validation: float, test: float, ranks: int = 1, version: str = "", **about: object
) -> None:
    """A finished run with these accuracies, on these ranks and of this version of hpcfed."""
    folder.mkdir(parents=True)
    header = {"job": job(**about), "architectures": ["mlp", "mlp"], "ended": "finished"}
    header |= {"ranks": ranks, "versions": {"hpcfed": version}}
    results = Results(folder, header, {})
    for _ in range(3):
        cells = {
            "clients/accuracy": np.array([test, test]),
            "clients/accuracy_validation": np.array([validation, np.nan]),
            "clients/loss_validation": np.array([1.0, np.nan]),
            "clients/cohort": np.ones(2),
        }
        results.append({**cells, "rounds/seconds": 2.0})
    results.finish()


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(command, "Pool", Finished)
    monkeypatch.setattr(
        command, "is_finished", lambda sweep, run: (sweep.folder / run.name).is_dir()
    )


def proposed(monkeypatch) -> list:
    """Returns the trials of which each proposal was told.

    A random search stands for Optuna where that is not installed.
    """
    trials, optuna = [], importlib.util.find_spec("optuna") is not None

    def propose(spans, tried):
        trials.append([*tried])
        return search.propose(spans, tried) if optuna else draw(spans, len(tried))

    monkeypatch.setattr(command, "propose", propose)
    return trials


@pytest.mark.usefixtures("pool")
def test_a_search_that_is_gone_on_with_makes_the_trials_that_it_would_have_made(
    tmp_path, monkeypatch
):
    trials = proposed(monkeypatch)
    words = [*WORDS, *LR, "--rounds", "3"]
    for n in (2, 4):
        assert command.sweep(words, out=tmp_path / "two", search="optuna", trials=n) == 0
    assert command.sweep(words, out=tmp_path / "one", search="optuna", trials=4) == 0
    one, two = (store.read(tmp_path / name) for name in ("one", "two"))
    assert len(one.runs) == 4 and replace(two, folder=one.folder) == one
    # four proposals of both searches; the first of each follows from none
    assert [len(tried) for tried in trials] == [0, 1, 2, 3, 0, 1, 2, 3]
    scores = [trial.score for tried in trials for trial in tried]
    assert all(score is not None and score > 0 for score in scores)


@pytest.mark.usefixtures("pool")
def test_a_repeated_proposal_is_replaced_until_all_values_of_a_grid_have_been_tried(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command, "propose", lambda spans, tried: {"local.lr": "2"})
    words = [*WORDS, "--local.lr", "1..4", "--rounds", "3"]
    for n in (3, 9):
        assert command.sweep(words, out=tmp_path / "s", search="optuna", trials=n) == 0
    rates = [run.fields["local.lr"] for run in store.read(tmp_path / "s").runs]
    assert rates[0] == 2 and sorted(rates) == [1, 2, 3, 4]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("search: ends after 4 of 9 trials: all values of local.lr")


@pytest.mark.usefixtures("pool")
def test_a_search_by_optuna_from_python_returns_its_trials(tmp_path, monkeypatch):
    proposed(monkeypatch)
    monkeypatch.chdir(tmp_path)
    runs = hpcfed.sweep(
        models={"mix": ["mlp"]},
        algorithm="fedavg",
        evaluate={"validation": 0.2},
        local={"lr": "log:0.001..0.1"},
        rounds=3,
        search="optuna",
        trials=2,
        out="s",
    )
    assert len({run.header["job"]["local"]["lr"] for run in runs}) == len(runs) == 2


def test_a_failed_search_from_python_counts_all_of_its_runs(tmp_path, monkeypatch):
    runs = define([*WORDS, "--seed", "0,1"], tmp_path / "s", 1, "").runs
    outcomes = [Outcome(runs[0], DONE, "done"), Outcome(runs[1], FAULT, "failed")]
    monkeypatch.setattr(python, "search_by_optuna", lambda *_: outcomes)
    with pytest.raises(HpcfedError, match="1 of 2 runs failed"):
        hpcfed.sweep(local={"lr": "log:0.001..0.1"}, search="optuna", out=tmp_path / "s")


def test_optuna_learns_from_the_trials_before():
    pytest.importorskip("optuna")
    spans, tried = {"local.lr": Range(1e-4, 1.0, log=True)}, []
    for _ in range(25):
        values = search.propose(spans, tried)
        tried.append(Trial(values, -abs(np.log10(float(values["local.lr"])) + 2)))
    assert search.propose(spans, tried) == search.propose(spans, tried)
    assert np.mean([t.score for t in tried[-8:]]) > np.mean([t.score for t in tried[:8]])


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("now", ["log:0.03..0.1", "0.03..0.1", "1..3"])
def test_a_search_may_continue_in_a_narrower_range(tmp_path, now):
    pytest.importorskip("optuna")
    for n, span in ((3, "log:0.001..0.1"), (5, now)):
        words = [*WORDS, "--local.lr", span, "--rounds", "3"]
        assert command.sweep(words, out=tmp_path / "s", search="optuna", trials=n) == 0
    rates = [run.fields["local.lr"] for run in store.read(tmp_path / "s").runs]
    narrow = parse("local.lr", now)
    assert len(set(rates)) == 5 and all(narrow.low <= rate <= narrow.high for rate in rates[3:])


def test_a_trial_below_the_median_of_complete_ones_at_the_same_round_is_hopeless():
    pytest.importorskip("optuna")
    complete = [
        Trial({"local.lr": "0.01"}, end, {1: end - 0.2, 2: end}) for end in (0.5, 0.6, 0.7, 0.8)
    ]
    assert search.is_hopeless(complete, {1: 0.3, 2: 0.6})  # the median of round 2 is 0.65
    assert not search.is_hopeless(complete, {1: 0.3, 2: 0.66})
    assert not search.is_hopeless(complete, {1: 0.5})  # of round 1 it is 0.45
    assert not search.is_hopeless(complete[:3], {1: 0.0, 2: 0.0})  # too few
    pruned = Trial({"local.lr": "0.1"}, None, {1: 0.1}, pruned=True)
    assert search.is_hopeless([*complete, pruned], {1: 0.3, 2: 0.6})
    assert search.propose({"local.lr": Range(1e-4, 1.0, log=True)}, [*complete, pruned])


def test_a_pruned_run_is_never_continued_and_status_says_why(tmp_path):
    sweep = define([*WORDS, "--seed", "0,1"], tmp_path / "s", 1, "")
    store.write(sweep)
    store.note(sweep, sweep.runs[0].name, store.make_end(0, f"{store.PRUNED}: below the median"))
    outcome = Pool(sweep, 1).run([0])[0]
    assert (outcome.status, outcome.line) == (command.DONE, "pruned before")
    current = member(sweep, sweep.runs[0])
    assert (current.word, current.why) == ("stopped", "pruned: below the median")


def test_pruning_without_trials_before_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--prune compares a trial with those before it"):
        command.sweep([*WORDS, *LR], out=tmp_path / "s", search="random", prune=True)


@pytest.mark.usefixtures("pool")
def test_a_search_of_a_methods_field_by_its_name_is_that_of_the_field(tmp_path, monkeypatch):
    proposed(monkeypatch)
    words = [*WORDS[:2], "--algorithm.name", "fedprox", "--evaluate.validation", "0.2", *LR]
    for n in (2, 4):
        mu = ("--fedprox.mu", "log:0.001..1")
        assert command.sweep([*words, *mu], out=tmp_path / "s", search="optuna", trials=n) == 0
    runs = store.read(tmp_path / "s").runs
    assert len(runs) == 4 and len({run.fields["algorithm.mu"] for run in runs}) == 4


def test_a_table_takes_the_values_with_the_best_validation_score_not_the_best_test_score(tmp_path):
    for method, good in (("fedavg", 0.01), ("fedprox", 0.1)):
        for lr in (0.01, 0.1):
            for seed in (0, 1):
                best = lr == good
                validation, test = (0.8, 0.5) if best else (0.6, 0.9)
                folder = tmp_path / f"{method}{lr}{seed}"
                finish(folder, validation, test, method=method, local_lr=lr, seed=seed)
    text = table(sorted(tmp_path.iterdir()), choose="local.lr", format="csv")
    assert "0.5" in text and "0.9" not in text
    words = table(sorted(tmp_path.iterdir()), choose="local.lr")
    assert "chosen by validation accuracy" in words and "not by test examples" in words
    for claim in ("FedAvg: local.lr = 0.01, of 2 choices", "FedProx: local.lr = 0.1, of 2 choices"):
        assert claim in words


def test_a_choice_says_if_it_has_fewer_seeds_than_others(tmp_path):
    for seed, lr, validation in ((0, 0.01, 0.8), (0, 0.1, 0.6), (1, 0.1, 0.7)):
        finish(tmp_path / f"{lr}{seed}", validation, 0.5, local_lr=lr, seed=seed)
    words = table(sorted(tmp_path.iterdir()), choose="local.lr")
    assert "local.lr = 0.01, of 2 choices; by 1 seed, others have up to 2" in words
    finish(tmp_path / "again", 0.8, 0.5, local_lr=0.01, seed=1)
    assert "others have" not in table(sorted(tmp_path.iterdir()), choose="local.lr")


def test_ranks_and_version_of_runs_do_not_split_a_choice(tmp_path):
    for seed, version in ((0, "0.1.0"), (1, "0.2.0")):
        for lr, validation, ranks in ((0.01, 0.8, 1), (0.1, 0.6 + 0.25 * seed, 2)):
            finish(
                tmp_path / f"{lr}{seed}", validation, lr, ranks, version, local_lr=lr, seed=seed
            )  # of seed 1 alone, 0.1 is better
    words = table(sorted(tmp_path.iterdir()), choose="local.lr")
    assert "local.lr = 0.01, of 2 choices" in words
    assert "of different code: hpcfed 0.1.0, hpcfed 0.2.0" in words


def test_a_choice_names_the_scored_model_and_refuses_a_mix_of_models(tmp_path):
    for lr, good in ((0.01, 0.5), (0.1, 0.8)):
        received = {"validation_model": "received"}
        finish(tmp_path / f"{lr}", good, good, local_lr=lr, evaluate=received)
    words = table(sorted(tmp_path.iterdir()), choose="local.lr")
    assert "local.lr = 0.1, of 2 choices" in words
    assert "validation accuracy of the models that clients would receive on" in words
    finish(tmp_path / "own", 0.9, 0.9, local_lr=1.0)
    with pytest.raises(ConfigError, match="own in some of these runs and received in others"):
        table(sorted(tmp_path.iterdir()), choose="local.lr")
