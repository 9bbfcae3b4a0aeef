"""`hpcfed matched`: the job of what a method's clients do, without the other clients."""

import tomllib

import pytest

from hpcfed.algorithms import ALGORITHMS
from hpcfed.cli import main
from hpcfed.config.load import Given, load
from hpcfed.core.errors import ConfigError
from hpcfed.launch.matched import matched, matched_job
from hpcfed.main import main as run
from hpcfed.storage.digest import digest
from tests.mpirun import ROOT
from tests.rows import for_each

JOBS = ROOT / "jobs/methods"
ONE = ("--models.mix", "mlp", "--data.train_limit", "60", "--rounds", "2", "--clients", "3")


def job_of(name, *flags):
    file = JOBS / f"{name}.toml"
    return load([str(file), *flags] if file.exists() else ["--algorithm.name", name, *flags])


@for_each([name for name in ALGORITHMS if (JOBS / f"{name}.toml").exists()])
def test_each_method_s_main_experiment_has_a_matched_job(name):
    job = job_of(name)
    alone = load([], environ={}, arguments=Given(job=matched_job(job)))
    if alone.algorithm.name != "local":  # the method itself, without what it exchanges
        assert alone.algorithm.name == job.algorithm.name
        for field, value in job.algorithm.alone.items():
            field = field.removeprefix("algorithm.")
            assert value is None or getattr(alone.algorithm, field) == value
    assert (alone.data, alone.seed, alone.rounds) == (job.data, job.seed, job.rounds)
    for field in ("optimiser", "lr", "batch", "augment"):
        assert getattr(alone.local, field) == getattr(job.local, field)
    assert (alone.models.mix, alone.participation) == (job.models.mix, job.participation)


@pytest.mark.parametrize(
    ("name", "flags", "local"),
    [
        ("fedrep", ("--algorithm.head_epochs", "3", "--algorithm.body_epochs", "2"), (5, None)),
        ("pfedme", ("--algorithm.inner_steps", "3", "--local.epochs", "2"), (6, None)),
        ("pfedme", ("--algorithm.inner_steps", "3", "--local.steps", "4"), (1, 12)),
        ("ditto", ("--algorithm.personal_epochs", "4"), (4, None)),
        ("fedpac", ("--algorithm.head_epochs", "2", "--local.epochs", "3"), (5, None)),
        ("fedpac", ("--algorithm.head_epochs", "0", "--local.steps", "4"), (1, 4)),
        ("fedprox", ("--local.epochs", "2"), (2, None)),
    ],
)
def test_it_passes_over_the_examples_as_often(name, flags, local):
    job = load(["--algorithm.name", name, *ONE, *flags])
    alone = load([], environ={}, arguments=Given(job=matched_job(job)))
    assert (alone.local.epochs, alone.local.steps) == local


def test_a_round_of_steps_and_epochs_has_no_matched_job():
    job = load(["--algorithm.name", "fedpac", *ONE, "--local.steps", "4"])
    with pytest.raises(ConfigError, match="4 local steps and 1 epochs beside them"):
        matched_job(job)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("fedktl", ("--algorithm.margin", "0.2", "--algorithm.latent", "9")),
        ("fedmd", ("--algorithm.transfer_epochs", "2", "--algorithm.subset", "9")),
        ("fccl", ("--algorithm.intra", "0.5", "--algorithm.public_lr", "0.1")),
        ("fedkd", ("--algorithm.hidden", "none", "--algorithm.energy_start", "0.5")),
        ("fedkemf", ("--algorithm.mutual", "mse", "--algorithm.server_lr", "1")),
        ("fedtype", ("--algorithm.kl", "0.5", "--algorithm.aggregation", "fedprox")),
    ],
)
def test_methods_with_a_loss_or_examples_of_their_own_keep_them(name, flags):
    needs = {"public": ("--data.public", "20"), "proxy": ("--models.proxy", "mlp")}
    beside = [word for need in ALGORITHMS[name].load()().needs for word in needs[need]]
    job = load(["--algorithm.name", name, *ONE, *beside, *flags])
    alone = matched_job(job)
    assert alone["algorithm"]["name"] == name
    field, value = flags[0].removeprefix("--algorithm."), flags[1]
    assert str(alone["algorithm"][field]) == value
    assert flags[2].removeprefix("--algorithm.") not in alone["algorithm"]  # it has no effect
    assert alone["models"].get("proxy", "") == job.models.proxy


def test_that_of_fedavg_is_local_training_bit_for_bit(tmp_path):
    text = matched("fedavg", ONE)
    (tmp_path / "job.toml").write_text(text)
    assert run([str(tmp_path / "job.toml"), "--out", str(tmp_path / "matched"), "--quiet"]) == 0
    flags = ("--algorithm.name", "local", *ONE, "--out", str(tmp_path / "local"), "--quiet")
    assert run([*flags]) == 0
    assert digest(tmp_path / "matched") == digest(tmp_path / "local")


def test_that_of_fedclassavg_trains_on_two_views_with_the_contrastive_loss_alone(capsys):
    assert main(["matched", "fedclassavg", "--algorithm.tau", "0.1", *ONE]) == 0
    table = tomllib.loads(capsys.readouterr().out)
    assert table["algorithm"] == {"name": "fedclassavg", "averaging": False, "tau": 0.1}
    method = load([], environ={}, arguments=Given(job=table)).algorithm
    assert (method.views, method.contrastive, method.shared("head.weight")) == (2, True, False)


def test_job_files_stand_behind_the_method_and_before_the_fields(tmp_path, capsys):
    file = tmp_path / "job.toml"
    file.write_text('rounds = 7\n[algorithm]\nname = "fedavg"\n')
    assert main(["matched", "ditto", str(file), "--algorithm.personal_epochs", "4", *ONE[:4]]) == 0
    table = tomllib.loads(capsys.readouterr().out)
    assert (table["rounds"], table["local"]) == (7, {"epochs": 4})
    with pytest.raises(SystemExit):
        main(["matched", "--help"])
    assert "hpcfed matched METHOD [JOB.toml ...] [--field value ...]" in capsys.readouterr().out


def test_what_happens_to_messages_is_left_out(tmp_path):
    flags = ("--compression.by", "int8", "--models.server", "mlp", "--out", str(tmp_path))
    flags += ("--data.public", "20")
    table = matched_job(load(["--algorithm.name", "fedet", *ONE, *flags]))
    assert not {"compression", "out"} & set(table)
    assert table["models"] == {"mix": ["mlp"]}


def test_a_job_that_the_method_cannot_run_is_refused(capsys):
    assert main(["matched", "fedavg", "--models.mix", "mlp,cnn"]) == 2
    assert "needs one architecture" in capsys.readouterr().err


def test_it_names_the_tables_that_it_leaves_out():
    attacked = ("--attack.by", "label-flip", "--attack.share", "0.3", "--defence.by", "median")
    comments = [
        line for line in matched("fedavg", [*ONE, *attacked]).splitlines() if line.startswith("#")
    ]
    assert comments[1:] == ["# without [attack], [defence], as nothing is sent"]
    assert "# without" not in matched("fedavg", ONE)
