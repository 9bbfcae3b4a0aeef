"""A command line becomes runs: the product of its values, each checked before any starts. Runs end
without harm.
"""

import fcntl
import json
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from time import time
from types import SimpleNamespace

import numpy as np
import pytest

from hpcfed.cli import main
from hpcfed.core.errors import ConfigError
from hpcfed.launch.sweep import gpus, launch, pool
from hpcfed.launch.sweep.grid import agree, define
from hpcfed.launch.sweep.launch import continuing
from hpcfed.launch.sweep.pool import BUSY, LEFT, Outcome, Pool
from hpcfed.storage import lock, names
from hpcfed.storage import sweep as store
from hpcfed.storage.results import Results
from hpcfed.storage.sweep import Member, Sweep

HOMOGENEOUS = ["--models.mix", "mlp"]


def runs(*words: str) -> list[tuple[str, list[str]]]:
    """Name and own flags of each run."""
    return [(run.name, run.words) for run in define([*words], Path("s"), 1, "").runs]


def test_a_sweep_is_the_product_of_its_values_the_last_field_fastest():
    planned = runs(*HOMOGENEOUS, "--algorithm.name", "fedavg,fedprox", "--seed=0,1")
    assert [name for name, _ in planned] == [
        "fedavg_seed=0",
        "fedavg_seed=1",
        "fedprox_seed=0",
        "fedprox_seed=1",
    ]
    assert planned[1][1] == ["--algorithm.name", "fedavg", "--seed", "1"]


def test_methods_of_a_sweep_are_named_in_any_spelling():
    words = [*HOMOGENEOUS, "--algorithm.name", "FedAvg,Fed-Prox", "--FedProx.mu", "0.1,1"]
    assert [name for name, _ in runs(*words)] == ["fedavg", "fedprox_mu=0.1", "fedprox_mu=1"]


def test_a_field_of_a_users_method_is_named_with_the_file_of_its_class(tmp_path, monkeypatch):
    (tmp_path / "own_of_a_sweep.py").write_text(
        "from hpcfed import RoundBased\nclass Mine(RoundBased):\n    mu: float = 0.1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = [*HOMOGENEOUS, "--algorithm.name", "fedavg,own_of_a_sweep:Mine"]
    named = [name for name, _ in runs(*words, "--own_of_a_sweep:Mine.mu", "1,2")]
    assert named == ["fedavg", "own_of_a_sweep-Mine_mu=1", "own_of_a_sweep-Mine_mu=2"]
    with pytest.raises(ConfigError, match="one of Mine alone --own_of_a_sweep:Mine.mu"):
        runs(*words, "--Mine.mu", "1,2")


def test_a_field_that_is_a_list_has_its_alternatives_between_semicolons():
    planned = runs("--models.mix", "mlp,cnn; cnn", "--local.betas", "0.5,0.999")
    assert planned == [
        ("mix=mlp-cnn", ["--models.mix", "mlp,cnn"]),
        ("mix=cnn", ["--models.mix", "cnn"]),
    ]
    flags = ["--algorithm.name", "fedasync", *HOMOGENEOUS, "--algorithm.decay", "0.5"]
    flags += ["--algorithm.decay_at", "10,20;30"]
    assert [name for name, _ in runs(*flags)] == ["decay_at=10-20", "decay_at=30"]


def test_a_semicolon_within_parentheses_belongs_to_the_value():
    mix = ["--models.mix", "concat(motion=gru;sound=mlp)"]
    assert [name for name, _ in runs(*mix, "--seed", "0,1")] == ["seed=0", "seed=1"]
    two = runs("--models.mix", "concat(motion=gru;sound=mlp),mlp;concat", "--note", "a(1,2,b")
    assert [words[1] for _, words in two][::3] == ["concat(motion=gru;sound=mlp),mlp", "concat"]
    assert [words[3] for _, words in two][:3] == ["a(1", "2", "b"]  # a parenthesis left open


def test_a_field_of_one_method_varies_in_its_runs_alone():
    words = [*HOMOGENEOUS, "--algorithm.name", "fedavg,ditto,fedprox", "--ditto.lam", "0.1,1"]
    planned = runs(*words, "--seed", "0,1", "--fedprox.mu", "0.5")
    assert [name for name, _ in planned] == [
        *("fedavg_seed=0", "fedavg_seed=1"),
        *("ditto_lam=0.1_seed=0", "ditto_lam=1_seed=0"),
        *("ditto_lam=0.1_seed=1", "ditto_lam=1_seed=1"),
        *("fedprox_seed=0_mu=0.5", "fedprox_seed=1_mu=0.5"),
    ]
    assert planned[3][1] == ["--algorithm.name", "ditto", "--algorithm.lam", "1", "--seed", "0"]
    one = runs(*HOMOGENEOUS, "--algorithm.name", "ditto", "--ditto.lam", "0.1,1")
    assert [name for name, _ in one] == ["lam=0.1", "lam=1"]


def test_a_search_draws_a_method_s_own_field_for_its_runs_alone():
    words = [*HOMOGENEOUS, "--algorithm.name", "fedavg,ditto", "--ditto.lam", "log:0.1..1"]
    words += ["--evaluate.validation", "0.2"]
    trials = [{"ditto.lam": "0.2"}, {"ditto.lam": "0.7"}]
    planned = define(words, Path("s"), 1, "", trials=trials).runs
    assert [run.name for run in planned] == ["fedavg", "lam=0.2_ditto", "lam=0.7_ditto"]
    assert [run.fields.get("algorithm.lam") for run in planned] == [None, 0.2, 0.7]


def jobs(folder: Path, *places: str) -> list[str]:
    """Job files at these places, each of one method on one architecture."""
    for place in places:
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).write_text('[models]\nmix = ["mlp"]\n[algorithm]\nname = "fedavg"\n')
    return [str(folder / place) for place in places]


def test_of_several_job_files_all_combinations_are_run_with_each(tmp_path):
    one, other = jobs(tmp_path, "a.toml", "b.toml")
    sweep = define([one, other, "--rounds", "3", "--seed", "0,1"], tmp_path / "s", 1, "")
    assert [run.name for run in sweep.runs] == ["a_seed=0", "a_seed=1", "b_seed=0", "b_seed=1"]
    assert sweep.words == [] and sweep.runs[2].words == [other, "--rounds", "3", "--seed", "0"]
    assert sweep.runs[2].fields["rounds"] == 3
    assert [name for name, _ in runs(one, other)] == ["a", "b"]  # no field needs to vary then


def test_job_files_of_one_name_are_distinguished_by_their_paths_and_duplicates_refused(
    tmp_path, monkeypatch
):
    jobs(tmp_path, "x/a.toml", "y/a.toml", "y/b.toml")
    monkeypatch.chdir(tmp_path)
    assert [name for name, _ in runs("x/a.toml", "y/a.toml", "y/b.toml")] == ["x-a", "y-a", "b"]
    with pytest.raises(ConfigError, match="y/b.toml is given twice"):
        runs("y/b.toml", "y/b.toml")


def test_overlays_lie_over_each_job_file_of_a_sweep(tmp_path):
    one, other = jobs(tmp_path, "a.toml", "b.toml")
    small, tiny = tmp_path / "small.toml", tmp_path / "tiny.toml"
    small.write_text("rounds = 3\nclients = 4\n")
    tiny.write_text("clients = 2\n")
    words = [one, other, "--seed", "0,1"]
    sweep = define(words, tmp_path / "s", 1, "", overlays=[small, tiny])
    assert [run.name for run in sweep.runs] == ["a_seed=0", "a_seed=1", "b_seed=0", "b_seed=1"]
    assert sweep.runs[2].words == [other, str(small), str(tiny), "--seed", "0"]
    assert [(run.fields["rounds"], run.fields["clients"]) for run in sweep.runs] == [(3, 2)] * 4
    alone = define([one, "--rounds", "5", "--seed", "0,1"], tmp_path / "s", 1, "", [small])
    assert alone.words == [one, str(small), "--rounds", "5"] and alone.runs[0].fields["rounds"] == 5


def test_the_command_takes_overlays_by_with_and_names_its_folder_after_them(
    tmp_path, monkeypatch, capsys
):
    one, other = jobs(tmp_path, "x/a.toml", "x/b.toml")
    (tmp_path / "small.toml").write_text("rounds = 3\n")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", one, other, "--with", "small.toml", "--dry-run"]) == 0
    assert "2 runs in runs/sweep-x-small, " in capsys.readouterr().out
    flags = [
        (["--with", "small.toml", "--seed", "0,1"], "--with small.toml lies over job files"),
        ([one, "--with", "small", "--seed", "0,1"], "'small' is neither a job file (.toml) nor"),
        ([one, other, "--with", other], f"{other} is a job of the sweep, and lies over its jobs"),
        ([one, "--with", "none.toml", "--seed", "0,1"], "none.toml: cannot read the job file"),
    ]
    for words, message in flags:
        assert main(["sweep", *words, "--dry-run"]) == 2
        assert message in capsys.readouterr().err
    store.write(define([one, "--seed", "0,1"], tmp_path / "s", 1, ""))
    assert main(["sweep", "s", "--with", "small.toml"]) == 2
    assert "a sweep continues with the jobs it has" in capsys.readouterr().err


def test_names_of_runs_contain_values_and_are_those_of_folders():
    two = runs(
        "--data.alpha",
        "0.1,1",
        "--algorithm.name",
        "fedavg",
        *HOMOGENEOUS,
        "--data.name",
        "/x/a.npz,b.h5",
    )
    assert [name for name, _ in two] == [
        "alpha=0.1_-x-a.npz",
        "alpha=0.1_b.h5",
        "alpha=1_-x-a.npz",
        "alpha=1_b.h5",
    ]
    alike = [name for name, _ in runs("--data.name", "a b.h5,a-b.h5")]
    assert len(set(alike)) == 2 and all(name.startswith("a-b.h5_") for name in alike)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "0"], "no field has several values"),
        (["--seed", "0,,1"], "empty value, or one twice"),
        (["--seed", "0,0"], "empty value, or one twice"),
        (["--seed", "0,1,00"], "runs seed=0 and seed=00 are the same job"),
        (["--local.lr", "0.1,1e-1"], "runs lr=0.1 and lr=1e-1 are the same job"),
        (["--sed", "0,1"], "did you mean 'seed'"),
        (["--seed", "0,1", "--overwrite"], "--overwrite: a sweep gives each run its own folder"),
        (["--seed", "0,1", "--resume", "x"], "--resume"),
        (
            ["--algorithm.name", "fedavg,moon", "--ditto.lam", "1,2"],
            "runs fedavg, moon and no ditto",
        ),
        (["--algorithm.name", "fedavg,ditto", "--algorithm.lam", "1,2"], "as in --ditto.lam 0.1,1"),
        (["--algorithm.name", "fedavg,ditto", "--ditto.lan", "1,2"], "no field 'algorithm.lan'"),
        (["--lr", "0.1,0.2"], "no field 'lr'; did you mean 'local.lr'"),
        (["--algorithm.name", "fedavg,fedprx"], "did you mean 'fedprox'"),
        (["--algorithm.name", "fedclassavg,fedavg"], "fedavg needs one architecture"),
        (["--seed", ",".join(map(str, range(1001)))], "more than 1,000 runs"),
        (["absent.toml", "--seed", "0,1"], "absent.toml: cannot read"),
    ],
)
def test_fields_that_cannot_be_swept_are_one_message(words, message):
    with pytest.raises(ConfigError, match=message):
        runs(*words)


def test_all_wrong_values_are_reported_at_once_and_nothing_is_written(tmp_path, capsys):
    words = ["sweep", "--out", str(tmp_path / "s"), "--seed", "0,-1", "--data.alpha", "0.5,0"]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and not (tmp_path / "s").exists()
    assert (
        "--seed: input should be greater than or equal to 0, got '-1'" in err
        and "--data.alpha" in err
    )
    assert "in run seed=-1_alpha=0.5; none was started" in err


def test_a_parameter_in_a_file_without_a_method_goes_to_all_methods_of_a_sweep(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('models.mix = ["mlp"]\nalgorithm.weighting = "uniform"\n')
    swept = define([str(job), "--algorithm.name", "fedavg,fedprox"], tmp_path / "s", 1, "mpirun")
    assert [run.fields["algorithm.weighting"] for run in swept.runs] == ["uniform"] * 2
    job.write_text('models.mix = ["mlp"]\nalgorithm.mu = 3\n')
    with pytest.raises(ConfigError, match="algorithm.mu: no field 'mu'") as error:
        define([str(job), "--algorithm.name", "fedavg,fedprox"], tmp_path / "s", 1, "mpirun")
    assert "in run fedavg" in str(error.value) and "as in --ditto.lam" in str(error.value)


def test_a_definition_is_read_as_it_was_written(tmp_path):
    sweep = define([*HOMOGENEOUS, "--seed", "0,1"], tmp_path / "s", 2, "srun --mpi=pmix")
    store.write(sweep)
    assert store.read(tmp_path / "s") == sweep and store.array_size(sweep) == 2
    text = json.loads(names.sweep_file(tmp_path / "s").read_text())
    assert text["job"]["models.mix"] == ["mlp"] and [run["job"] for run in text["runs"]] == [
        {"seed": 0},
        {"seed": 1},
    ]


def test_a_sweep_may_grow_and_last_longer_but_not_change(tmp_path):
    old = define([*HOMOGENEOUS, "--seed", "0,1"], tmp_path, 1, "")
    agree(old, define([*HOMOGENEOUS, "--seed", "0,1,2", "--rounds", "200"], tmp_path, 2, ""))
    with pytest.raises(ConfigError, match="has a run seed=0 too"):
        agree(old, define([*HOMOGENEOUS, "--seed", "1,2"], tmp_path, 1, ""))
    with pytest.raises(
        ConfigError, match=r"seed=0 was defined with local.lr = 0.0005, and now has 0.1"
    ):
        agree(old, define([*HOMOGENEOUS, "--seed", "0,1", "--local.lr", "0.1"], tmp_path, 1, ""))


def test_runs_keep_their_numbers_when_a_sweep_grows_because_queued_tasks_name_them(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("hpcfed.launch.sweep.batch.sbatch", lambda text: "7")
    words = ["sweep", *HOMOGENEOUS, "--algorithm.name", "fedavg,local", "--out", str(tmp_path)]
    assert main([*words, "--seed", "0,2", "--submit"]) == 0
    before = [run.name for run in store.read(tmp_path).runs]
    assert main([*words, "--seed", "0,1,2", "--submit"]) == 0
    assert "6 tasks" in capsys.readouterr().out
    after = [run.name for run in store.read(tmp_path).runs]
    assert after == [*before, "fedavg_seed=1", "local_seed=1"]


def test_a_sweep_whose_final_steps_or_patience_have_changed_is_refused(tmp_path):
    words = [*HOMOGENEOUS, "--evaluate.validation", "0.2", "--adapt.how", "all"]
    old = define([*words, "--adapt.epochs", "1", "--seed", "0,1"], tmp_path, 1, "")
    for more, changed in (
        (["--adapt.epochs", "50"], "adapt.epochs = 1, and now has 50"),
        (["--adapt.epochs", "1", "--evaluate.patience", "2"], "evaluate.patience = 0, and now has"),
    ):
        with pytest.raises(ConfigError, match=f"seed=0 was defined with {changed}"):
            agree(old, define([*words, *more, "--seed", "0,1,2"], tmp_path, 1, ""))


def test_rounds_of_a_job_file_that_have_changed_since_are_refused_when_a_sweep_continues(
    tmp_path, capsys
):
    job = tmp_path / "job.toml"
    job.write_text("rounds = 3\n")
    words = [str(job), "--seed", "0,1"]
    store.write(define(words, tmp_path / "s", 1, ""))
    for rounds in (2, 4):
        job.write_text(f"rounds = {rounds}\n")
        assert main(["sweep", str(tmp_path / "s")]) == 2
        message = capsys.readouterr().err
        assert f"seed=0 was defined with rounds = 3, and now has {rounds}" in message
        assert "give the words that it began with" in message
        agree(store.read(tmp_path / "s"), define(words, tmp_path / "s", 1, ""))


def test_a_task_whose_job_file_was_changed_is_refused(tmp_path, capsys):
    job = tmp_path / "job.toml"
    job.write_text("rounds = 1\n")
    store.write(define([str(job), "--seed", "0,1"], tmp_path / "s", 1, ""))
    job.write_text("rounds = 1\nclients = 3\n")
    for words, seed in [(["--task", "1"], 1), ([], 0)]:
        assert main(["sweep", *words, str(tmp_path / "s")]) == 2
        assert (
            f"seed={seed} was defined with clients = 20, and now has 3" in capsys.readouterr().err
        )
    assert main(["sweep", "--task", "2", str(tmp_path / "s")]) == 2
    assert "has the tasks 0 to 1" in capsys.readouterr().err
    assert main(["sweep", "--at-once", "0", str(tmp_path / "s")]) == 2
    assert "--at-once 0: give at least 1" in capsys.readouterr().err


HOSTILE = {  # what a sweep's file may not make hpcfed do: changes of the file, and the message
    "launcher": ({"launcher": "touch ran"}, "name it yourself: --launcher 'touch ran'"),
    "method": ({"words": ["--algorithm.name", "evil:Mine"]}, "names evil:Mine: .*--own evil:Mine"),
    "model": ({"words": ["--models.mix", "evil:Mine"]}, "names evil:Mine: .*--own evil:Mine"),
    "metric": (
        {"words": ["--evaluate.metrics", "evil:Mine"]},
        "names evil:Mine: .*--own evil:Mine",
    ),
    "callback": ({"words": ["--on-round", "evil:Mine"]}, "names evil:Mine: .*--own evil:Mine"),
    "job file": ({"words": ["evil.toml"]}, "names evil:Mine: .*--own evil:Mine"),
    "directory": ({"directory": "{folder}/s"}, "may find modules to import; go there first: cd "),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_the_file_of_a_sweep_starts_no_program_that_the_user_does_not_name(
    tmp_path, monkeypatch, capsys, case
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\n")
    (tmp_path / "evil.toml").write_text("algorithm.name = 'evil:Mine'\n")
    store.write(define(["--seed", "0,1"], tmp_path / "s", 1, ""))
    changes, words = HOSTILE[case]
    path = names.sweep_file(tmp_path / "s")
    text = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(text).replace("{folder}", str(tmp_path)))
    assert main(["sweep", str(tmp_path / "s")]) == 2
    assert re.search(words, capsys.readouterr().err) and not (tmp_path / "ran").exists()


def test_a_sweep_with_code_of_the_users_says_how_it_is_continued(tmp_path, monkeypatch):
    fields = {"algorithm.name": "mine:Mine", "models.mix": ["mine:A+mlp", "hf:b"]}
    run = Member("a", [], {**fields, "on_round": "mine:show"})
    sweep = Sweep(Path("s"), [], "", 2, "srun -l", (run,))
    own = "--own mine:Mine --own mine:A --own mine:show"
    assert continuing(sweep) == f"hpcfed sweep --launcher 'srun -l' {own} s"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Three runs, of which the shell plays the part of hpcfed.main (see `plays`)."""
    members = tuple(
        Member(name, [], {"run.threads": 1, "run.device": "auto", "rounds": 1}) for name in "abc"
    )
    return Sweep(tmp_path / "s", [], str(tmp_path), 1, "", members)


def plays(monkeypatch, **scripts: str) -> None:
    """Each run is a script of the shell. It has finished when it has made its folder, as those not
    given do.
    """
    commands = {name: f"mkdir s/{name}" for name in "abc"} | scripts
    monkeypatch.setattr(launch, "command", lambda sweep, run: ["sh", "-c", commands[run.name]])
    monkeypatch.setattr(pool, "is_finished", lambda sweep, run: (sweep.folder / run.name).exists())
    monkeypatch.setattr(pool, "load", lambda path: None)
    monkeypatch.setattr(pool, "main_metric", lambda record: "accuracy")
    monkeypatch.setattr(pool, "metric", lambda record, name: {"mean": 0.5})


def test_a_failing_run_does_not_end_others_and_its_reason_is_reported(sweep, monkeypatch, capsys):
    plays(monkeypatch, a="echo 'hpcfed: no data'; echo more; exit 2", b="kill -9 $$")
    outcomes = Pool(sweep, 1).run(range(3))
    assert [one.status for one in outcomes] == [2, 137, 0] and [one.failed for one in outcomes] == [
        True,
        True,
        False,
    ]
    assert "a: failed with status 2: hpcfed: no data\n" in capsys.readouterr().out
    assert (
        store.last_end(sweep, "a").line == "hpcfed: no data" and store.last_end(sweep, "c") is None
    )


def test_a_run_is_named_with_its_place_in_the_sweep_when_it_begins(sweep, monkeypatch, capsys):
    plays(monkeypatch)
    (sweep.folder / "b").mkdir(parents=True)
    Pool(sweep, 1).run(range(3))
    lines = [line.partition(", ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        *("0: a: begins (run 1 of 3)", "0: a: done", "1: b: finished before"),
        *("2: c: begins (run 3 of 3)", "2: c: done"),
    ]


def test_a_launcher_that_returns_0_before_all_is_done_is_not_believed(sweep, monkeypatch):
    plays(monkeypatch, a="exit 0")
    assert [one.status for one in Pool(sweep, 1).run([0, 1])] == [75, 0]
    assert [one.line for one in Pool(sweep, 1).run([1])] == ["finished before"]


def test_a_signal_stops_active_runs_and_no_others_start(sweep, monkeypatch):
    plays(
        monkeypatch,
        a=f"trap 'exit 75' USR1; kill -TERM {os.getpid()}; while :; do sleep 0.05; done",
    )
    before = signal.getsignal(signal.SIGTERM)
    assert [one.status for one in Pool(sweep, 1).run(range(3))] == [75, LEFT, LEFT]
    assert signal.getsignal(signal.SIGTERM) is before
    assert store.last_end(sweep, "a").status == 75


@pytest.mark.parametrize("places", [1, 2])
def test_the_other_seeds_of_a_hopeless_trial_end_with_it_and_are_not_started(
    sweep, monkeypatch, places
):
    (Path(sweep.directory) / "s").mkdir()
    scripts = {
        name: f"trap 'exit 75' USR1; touch {name}.ready; while :; do sleep 0.05; done"
        for name in "ab"
    }
    plays(monkeypatch, **scripts)
    ready = [Path(sweep.directory) / f"{name}.ready" for name in "ab"[:places]]
    hopeless = lambda run: run.name == "a" and all(path.exists() for path in ready)  # noqa: E731
    outcomes = Pool(sweep, places, hopeless).run(range(3))
    assert [one.status for one in outcomes] == [0, 0, 0]
    assert all(one.line.startswith("pruned: ") for one in outcomes)
    assert not (sweep.folder / "c").exists()
    again = [one.line for one in Pool(sweep, 1).run(range(3))]
    assert again == ["pruned before"] * 3


def test_a_run_that_another_process_has_is_left_alone(sweep, monkeypatch):
    plays(monkeypatch, a="exit 1")
    path = names.log_file(sweep.folder, "a")
    path.parent.mkdir(parents=True)
    with open(path, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert [one.status for one in Pool(sweep, 2).run([0, 1])] == [BUSY, 0]


def test_a_run_that_another_process_finished_meanwhile_counts_as_done(sweep, monkeypatch):
    plays(monkeypatch, b="mkdir s/a s/b")  # the other process finishes a while this one does b
    path = names.log_file(sweep.folder, "a")
    path.parent.mkdir(parents=True)
    with open(path, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        outcomes = Pool(sweep, 1).run([0, 1])
    assert [(one.status, one.unfinished) for one in outcomes] == [(0, False)] * 2
    assert outcomes[0].line == "finished by another process"


def test_the_line_of_a_run_is_written_at_once_so_that_others_do_not_cut_it(sweep, monkeypatch):
    texts = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=texts.append, flush=lambda: None))
    Pool(sweep, 1).print_outcome(Outcome(sweep.runs[0], 0, "done"), 0)
    assert list(filter(None, texts)) == ["0: a: done\n"]


def lock_of(run: Path, host: str, silent: float) -> None:
    """Leave the lock of a process on this host, which was last renewed so many seconds ago."""
    run.mkdir(parents=True)
    holder = lock.Holder("0" * 32, "w", "me", host, "another boot", 7, "1")
    path = names.lock_file(run)
    path.write_text(json.dumps(vars(holder)))
    os.utime(path, (time() - silent, time() - silent))


def test_a_run_whose_process_on_another_machine_is_silent_for_a_minute_is_taken_over(
    sweep, monkeypatch
):
    monkeypatch.setattr(pool, "is_finished", lambda sweep, run: False)
    monkeypatch.setattr(launch, "command", lambda sweep, run: ["sh", "-c", 'echo "got $0"; exit 2'])
    lock_of(sweep.folder / "a", "node7", 300)
    lock_of(sweep.folder / "b", "node7", 5)
    outcomes = Pool(sweep, 1).run([0, 1])
    assert [one.status for one in outcomes] == [2, BUSY]
    assert "got --force" in outcomes[0].line
    assert re.search("process 7 of me on node7 runs it, last heard of at 20", outcomes[1].line)


def test_a_run_holds_its_lock_as_long_as_it_lasts(sweep, monkeypatch):
    plays(monkeypatch, a="kill -STOP $$")  # it lasts until it is told to go on
    log = names.log_file(sweep.folder, "a")
    with launch.lock_log(log) as file:
        process = launch.start(sweep, sweep.runs[0], file)
    with launch.lock_log(log) as file:
        assert file is None
    os.waitpid(process.pid, os.WUNTRACED)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    with launch.lock_log(log) as file:
        assert file is not None


def test_finished_runs_are_recognised_by_their_results(sweep):
    run = replace(sweep.runs[0], fields={"rounds": 2})
    for ended, rounds, want in [(None, 2, False), ("finished", 1, False), ("finished", 2, True)]:
        header = {"job": {}, "architectures": ["mlp"]} | ({"ended": ended} if ended else {})
        results = Results(sweep.folder / "a", header, {})
        for _ in range(rounds):
            results.append({"clients/accuracy": np.array([0.5])})
        results.finish()
        assert launch.is_finished(sweep, run) == want


def test_a_run_is_one_process_or_ranks_of_a_launcher(sweep, monkeypatch):
    monkeypatch.setattr(launch.shutil, "which", lambda name, path=None: f"/bin/{name}")
    alone, elsewhere = (
        launch.command(it, it.runs[0]) for it in (sweep, replace(sweep, directory="/else"))
    )
    assert alone[1:3] == ["-m", "hpcfed.main"] and (alone[-1], elsewhere[-1]) == (
        "s/a",
        str(sweep.folder / "a"),
    )
    assert launch.command(replace(sweep, ranks=3), sweep.runs[0])[:3] == ["/bin/mpirun", "-n", "3"]
    srun = replace(sweep, ranks=2, launcher="srun --mpi=pmix")
    assert launch.command(srun, sweep.runs[0])[:4] == ["/bin/srun", "-n", "2", "--mpi=pmix"]


def test_runs_side_by_side_share_the_cores(sweep, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert [pool.runs_at_once(replace(sweep, ranks=ranks)) for ranks in (1, 2, 4, 16)] == [
        3,
        3,
        2,
        1,
    ]
    threads = tuple(replace(run, fields=run.fields | {"run.threads": 4}) for run in sweep.runs)
    assert pool.runs_at_once(replace(sweep, runs=threads)) == 2


def gpus_here(monkeypatch, n: int, mask: str | None) -> None:
    """Pretend so many GPUs that torch sees, under this CUDA_VISIBLE_DEVICES."""
    monkeypatch.setattr(gpus, "gpu_files", lambda: 8)
    monkeypatch.setattr(gpus, "count_gpus", lambda: n)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)


@pytest.mark.parametrize(
    ("n", "mask", "places", "shares"),
    [
        (4, None, 2, ["0,1", "2,3"]),
        (3, "5, GPU-a,7", 3, ["5", "GPU-a", "7"]),
        (1, "2,-1,3", 2, ["2", "2"]),  # CUDA ends at the first that is not there
        (2, None, 3, ["0", "1", "0"]),
        (4, "1,2", 1, [None]),
        (0, "", 2, [None, None]),
    ],
)
def test_runs_side_by_side_share_the_visible_gpus(sweep, monkeypatch, n, mask, places, shares):
    gpus_here(monkeypatch, n, mask)
    assert gpus.shares(gpus.usable(sweep), places) == shares


def test_each_run_sees_only_its_gpus(sweep, monkeypatch):
    gpus_here(monkeypatch, 2, "3,4")
    plays(
        monkeypatch,
        **{name: f"echo $CUDA_VISIBLE_DEVICES > {name}.gpus; mkdir s/{name}" for name in "abc"},
    )
    Pool(sweep, 2).run(range(3))
    gpus = [(Path(sweep.directory) / f"{name}.gpus").read_text().strip() for name in "abc"]
    log = names.log_file(sweep.folder, "a").read_text()
    assert set(gpus) == {"3", "4"} and f"$ CUDA_VISIBLE_DEVICES={gpus[0]} sh -c" in log


def test_there_can_be_one_gpu_per_rank(sweep, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    gpus_here(monkeypatch, 4, None)
    assert [pool.runs_at_once(replace(sweep, ranks=ranks)) for ranks in (1, 2, 4, 8)] == [
        3,
        2,
        1,
        1,
    ]
    on_cores = tuple(replace(run, fields=run.fields | {"run.device": "cpu"}) for run in sweep.runs)
    assert pool.runs_at_once(replace(sweep, ranks=4, runs=on_cores)) == 3


def test_options_of_an_array_job_without_one_are_refused_and_nothing_starts(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["sweep", *HOMOGENEOUS, "--seed", "0,1", "--out", "s"]
    assert main([*words, "--time", "10:00", "--ntasks-per-node", "1"]) == 2
    message = capsys.readouterr().err
    assert "--ntasks-per-node, --time: of an array job, but without --submit" in message
    assert main([*words, "--submit", "--task", "1", "--dry-run"]) == 2
    assert "--task 1 does one run here, and --submit hands all" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_sweep_can_be_an_array_job_whose_tasks_know_their_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "sweep",
        *HOMOGENEOUS,
        "--seed",
        "0,1,2",
        "--out",
        "s",
        "--submit",
        "--launcher",
        "mpirun",
    ]
    asked = ["--nodes", "2", "--ntasks-per-node", "4", "--cpus-per-task", "2", "--at-once", "2"]
    assert main([*words, *asked, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --array=0-2%2\n" in text
    task = (
        rf"\nwatch hpcfed sweep --task \$SLURM_ARRAY_TASK_ID --launcher '?mpirun.* {tmp_path}/s\n"
    )
    assert re.search(task, text)
    assert not (tmp_path / "s").exists()

    monkeypatch.setattr("hpcfed.launch.sweep.batch.sbatch", lambda text: "7")
    assert main([*words, *asked]) == 0
    assert capsys.readouterr().out.startswith("submitted job 7, 3 tasks; hpcfed status s shows")
    sweep = store.read(tmp_path / "s")
    assert (sweep.ranks, sweep.launcher) == (8, "mpirun --bind-to none")
    assert main([*words, *asked, "--ranks", "9"]) == 2
    assert "--ranks 9, but 2 nodes of --ntasks-per-node 4 have 8 tasks" in capsys.readouterr().err
    assert main([*words, "--nodes", "2", "--ranks", "3", "--run.grace", "600", "--dry-run"]) == 0
    assert (
        "--ntasks-per-node=2\n" in (out := capsys.readouterr().out)
        and "--signal=B:USR1@660\n" in out
    )
    assert main([*words]) == 0 and (
        store.read(tmp_path / "s").ranks,
        store.read(tmp_path / "s").launcher,
    ) == (1, "")


def test_a_sweep_that_is_submitted_by_its_folder_has_its_own_ranks_and_takes_no_fields(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hpcfed.launch.sweep.batch.sbatch", lambda text: "7")
    submit = ["--submit", "--launcher", "mpirun"]
    words = ["sweep", *HOMOGENEOUS, "--seed", "0,1", "--out", "s", "--ranks", "8"]
    assert main([*words, *submit]) == 0
    capsys.readouterr()
    assert main(["sweep", "s", *submit, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "--ntasks-per-node=8\n" in text and "--launcher mpirun" in text
    assert "changes fields" not in text and "\n# scancel --batch" in text
