"""Job files, the environment and flags: who wins, and what is said about a mistake."""

import os
from pathlib import Path

import pytest

from hpcfed.algorithms.global_model.scaffold import Scaffold
from hpcfed.config import files
from hpcfed.config.fields import kind_of
from hpcfed.config.help import MAIN
from hpcfed.config.help import help as help_of
from hpcfed.config.job import Job
from hpcfed.config.layers import merge
from hpcfed.config.load import Given, load, read
from hpcfed.config.words import CommandLine
from hpcfed.core.errors import ConfigError

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """Without what the user has set for her own runs."""
    for name in [name for name in os.environ if name.startswith("HPCFED_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def job_file(tmp_path):
    """Writes a job file; returns its path as text."""

    def write(text: str, name: str = "job.toml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def help(words: list[str]) -> str:
    return help_of(CommandLine.parse(words))


def message(*words: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(words)
    return str(error.value)


def test_without_a_file_the_embedded_job_runs_and_with_a_file_it_does_not(job_file):
    assert (load([]).data.test_share, load([]).local.batch) == (1.0, 16)
    assert load([job_file("rounds = 3\n")]).local.batch == 64


def test_flags_override_the_environment_which_overrides_the_file(job_file, monkeypatch):
    path = job_file("rounds = 1\nseed = 1\nclients = 5\n[data]\nalpha = 0.1\n")
    monkeypatch.setenv("HPCFED_ROUNDS", "2")
    monkeypatch.setenv("HPCFED_DATA__ALPHA", "0.2")
    monkeypatch.setenv("HPCFED_SEED", "2")
    job = load([path, "--rounds", "3", "--data.alpha=0.3"])
    assert (job.rounds, job.data.alpha, job.seed, job.clients) == (3, 0.3, 2, 5)


def test_the_file_wins_over_the_preset_and_the_preset_over_defaults(job_file):
    job = load([job_file('preset = "authors"\n[algorithm]\nprox = "squared"\n')])
    assert (job.algorithm.prox, job.algorithm.tau, job.models.relu_head) == ("squared", 100.0, True)
    assert load([job_file("")]).algorithm.tau == 0.07


def test_a_preset_on_the_command_line_wins_over_the_file_and_single_flags_over_it(
    job_file, monkeypatch
):
    path = job_file(
        'preset = "paper"\n[algorithm]\nprox = "squared"\n[data]\nname = "fashion-mnist"\n'
        'sizes = "equal"\n[local]\nlr = 6e-4\nbatch = 32\n'
    )
    words = [path, "--preset", "authors"]
    job = load([*words, "--local.betas", "0.8,0.9"])
    assert (job.algorithm.prox, job.algorithm.tau, job.data.sizes) == ("mse", 100.0, "free")
    assert (job.local.lr, job.local.betas, job.local.batch) == (1e-4, (0.8, 0.9), 32)
    assert load([*words, "--data.name", "emnist-letters"]).local.lr == 5e-4
    monkeypatch.setenv("HPCFED_PRESET", "authors")
    assert load([path]).local.lr == 1e-4 and load(["--preset", "paper"]).local.lr == 5e-4


def test_a_resumed_run_keeps_fields_set_over_its_preset(job_file):
    stored = {"preset": "authors", "algorithm": {"name": "fedclassavg", "tau": 5.0}}
    job = load(["--resume", "runs/a", "--preset", "authors"], lambda path: stored)
    assert job.algorithm.tau == 5.0


def test_a_job_knows_the_fields_that_its_preset_and_its_method_set(job_file):
    sources = load(["--preset", "authors", "--local.betas", "0.8,0.9"]).sources()
    assert sources["data.sizes"] == sources["algorithm.tau"] == "preset authors"
    assert "local.betas" not in sources and "rounds" not in sources
    sgd = load([job_file('[models]\nmix = ["mlp"]\n[algorithm]\nname = "fedsgd"\n')])
    assert (sgd.local.optimiser, sgd.local.lr) == ("sgd", 0.1)
    assert sgd.sources() == {
        "local.optimiser": "default of fedsgd",
        "local.lr": "default of fedsgd",
    }


def test_a_methods_own_defaults_of_local_training_lie_below_all_else(job_file):
    method = '[models]\nmix = ["mlp"]\n[algorithm]\nname = "dsgd"\n'
    assert load([job_file(method)]).local.keep_optimiser
    assert not load([job_file(method + "[local]\nkeep_optimiser = false\n")]).local.keep_optimiser


def test_an_option_without_effect_is_refused_with_the_reason(job_file):
    assert message("--local.momentum", "0.9") == (
        "local.momentum = 0.9 has no effect: local.optimiser = 'adam'\n"
        "  remove it, or set its default, 0.0; it is used only if local.optimiser = 'sgd'"
    )
    text = message("--algorithm.contrastive", "false", "--algorithm.tau", "1", "--local.decay", "2")
    assert text.count("has no effect") == 2
    preset = ["--preset", "authors", "--algorithm.contrastive", "false"]
    assert load(preset).algorithm.tau == 100.0  # the preset's, which is nobody's wish
    stored = {"algorithm": {"name": "fedsgd"}, "models": {"mix": ["mlp"]}}
    stored["local"] = {"optimiser": "adam", "weight_decay": 0.1}
    assert load(["--resume", "runs/a"], lambda path: stored).local.optimiser == "adam"
    words = ["--algorithm.name", "fedsgd", "--models.mix", "mlp", "--local.optimiser", "adam"]
    assert 'local.optimiser = "adam" has no effect' in message(*words)


def test_a_field_of_an_own_method_may_have_no_default(monkeypatch):
    flags = ["--algorithm.name", "tests.system.faulty:Signalled"]
    assert message(*flags) == "algorithm.sign: must be given; the method has no default for it"
    job = load([*flags, "--algorithm.sign", "here", "--models.mix", "mlp"])
    assert job.algorithm.sign == Path("here")


@pytest.mark.parametrize("value", ["mlp,cnn", '["mlp", "cnn"]'])
def test_several_values_are_written_the_same_way_in_environment_and_flags(monkeypatch, value):
    assert load(["--models.mix", value]).models.mix == ("mlp", "cnn")
    monkeypatch.setenv("HPCFED_MODELS__MIX", value)
    assert load([]).models.mix == ("mlp", "cnn")


@pytest.mark.parametrize("name", ["FedAvg", "FEDAVG", "Fed-Avg", "fedavg"])
def test_a_methods_name_is_taken_in_any_spelling(job_file, monkeypatch, name):
    mlp = "[models]\nmix = ['mlp']\n"
    below = job_file(f"{mlp}[algorithm]\nname = 'fedavg'\nweighting = 'uniform'\n", "a.toml")
    path = job_file(f"extends = ['a.toml']\n[algorithm]\nname = '{name}'\n")
    words = [below, "--algorithm.name", name]
    for job in (load([path]), load(words)):  # the same method, whose fields stay
        assert (job.algorithm.name, job.algorithm.weighting) == ("fedavg", "uniform")
        assert job.plain()["algorithm"]["name"] == "fedavg"
    assert "weighting" in help([below, "--help", name])
    monkeypatch.setenv("HPCFED_ALGORITHM__NAME", name)
    assert load([job_file(mlp, "b.toml")]).algorithm.name == "fedavg"


def test_an_unknown_method_is_unknown_in_any_spelling():
    assert "no algorithm 'FedPox'; did you mean 'fedprox'" in message("--algorithm.name", "FedPox")


def test_none_is_written_the_same_way_in_environment_and_flags(job_file, monkeypatch):
    path = job_file("out = 'x'\n[local]\nsteps = 5\n")
    job = load([path, "--local.steps", "none"])
    assert (job.local.steps, job.out) == (None, Path("x"))
    monkeypatch.setenv("HPCFED_OUT", "None")
    assert load([path]).out is None


def test_a_variable_may_contain_a_table(monkeypatch):
    monkeypatch.setenv("HPCFED_DATA", '{"alpha": 0.25, "sizes": "free"}')
    monkeypatch.setenv("HPCFED_DATA__SIZES", "equal")
    job = load([])
    assert (job.data.alpha, job.data.sizes) == (0.25, "equal")
    assert job.origins()["data.alpha"] == "environment: HPCFED_DATA"
    monkeypatch.setenv("HPCFED_DATA", "{")
    assert message().startswith("environment: HPCFED_DATA: not JSON: ")


def test_a_list_of_the_wrong_length_says_how_many_values_it_takes():
    assert message("--local.betas", "0.9") == "command line: --local.betas: takes 2 values, got 1"


def test_a_mistake_in_a_field_of_several_types_names_the_flag():
    assert message("--evaluate.clients", "x").startswith(
        "command line: --evaluate.clients: input should be 'auto', 'all' or 'cohort', got 'x'\n"
    )


def test_numbers_in_a_row_can_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("HPCFED_LOCAL__BETAS", "0.5,0.9")
    monkeypatch.setenv("HPCFED_LOCAL__SCHEDULE", "step")
    monkeypatch.setenv("HPCFED_LOCAL__MILESTONES", "7")
    assert (load([]).local.betas, load([]).local.milestones) == ((0.5, 0.9), (7,))


def test_a_file_lies_over_the_files_that_it_extends_later_ones_first(job_file):
    job_file("rounds = 1\nclients = 3\nseed = 7\n[data]\nalpha = 0.1\n", "a.toml")
    job_file("rounds = 2\nclients = 4\n[data]\nname = 'mnist'\n", "b.toml")
    job = load([job_file("extends = ['a.toml', 'b.toml']\nrounds = 5\n")])
    assert (job.rounds, job.clients, job.seed, job.data.alpha, job.data.name) == (
        5,
        4,
        7,
        0.1,
        "mnist",
    )


def test_merging_keeps_fields_that_the_upper_table_does_not_name():
    assert merge({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "c": 4}) == {
        "a": {"x": 1, "y": 3},
        "b": 1,
        "c": 4,
    }


def test_a_resumed_run_starts_from_its_stored_job_under_file_and_flags(job_file):
    stored = {
        "rounds": 9,
        "clients": 6,
        "algorithm": {"name": "fedprox", "mu": 0.3},
        "models": {"mix": ["mlp"]},
    }
    job = load(
        ["--resume", "runs/a", "--rounds", "12"],
        lambda path: stored if path == Path("runs/a") else {},
    )
    assert (job.rounds, job.clients, job.algorithm.mu, job.algorithm.name) == (
        12,
        6,
        0.3,
        "fedprox",
    )


def test_switches_take_true_false_or_nothing_and_dashes_are_underscores():
    on = load(["--dry-run", "--models.relu_head", "true", "--local.keep-optimiser=true"])
    assert (on.dry_run, on.models.relu_head, on.local.keep_optimiser) == (True, True, True)
    off = load(["--no-dry-run", "--evaluate.before", "false", "--no-data.download"])
    assert (off.dry_run, off.evaluate.before, off.data.download) == (False, False, False)


def test_the_algorithm_decides_which_parameters_there_are():
    assert (
        load(
            ["--algorithm.name", "fedprox", "--algorithm.mu", "0.5", "--models.mix", "mlp"]
        ).algorithm.mu
        == 0.5
    )
    assert "no field 'algorithm.mu'" in message("--algorithm.name", "fedavg", "--algorithm.mu", "1")


def test_a_mistake_on_the_command_line_names_the_flag():
    assert (
        message("--rounds", "0")
        == "command line: --rounds: input should be greater than 0, got '0'"
    )
    assert message("--data.alfa", "1").startswith(
        "command line: no field 'data.alfa'; did you mean 'data.alpha'"
    )
    assert message("--rounds") == "command line: --rounds: expected one argument"


def test_a_command_that_continues_a_run_and_replaces_it_is_refused(job_file):
    stored = {"algorithm": {"name": "fedavg"}, "models": {"mix": ["mlp"]}}
    both = ["--resume", "runs/a", "--overwrite"]
    refusal = "continues the run in runs/a, and overwrite replaces it; give one of them"
    with pytest.raises(ConfigError, match=f"^command line: --resume: it {refusal}"):
        load(both, lambda path: stored)
    with pytest.raises(ConfigError, match=f"^hpcfed.run: resume: it {refusal}"):
        call = Given(fields={"resume": "runs/a", "overwrite": True})
        load([], lambda path: stored, arguments=call)
    file = job_file("overwrite = true\n")  # of the runs that it starts
    assert load([file, *both[:2]], lambda path: stored).resume == Path("runs/a")
    assert load([*both, "--no-overwrite"], lambda path: stored).resume == Path("runs/a")


def test_a_field_without_its_table_is_named_with_it(job_file, monkeypatch):
    assert "no field 'lr'; did you mean 'local.lr' or 'adapt.lr'?" in message("--lr", "0.1")
    assert "no field 'data.lr'; did you mean 'local.lr'" in message("--data.lr", "0.1")
    assert "lr: no field 'lr'; did you mean 'local.lr'" in message(job_file("lr = 0.1\n"))
    monkeypatch.setenv("HPCFED_LR", "0.1")
    assert "HPCFED_LR: no field 'lr'; did you mean 'local.lr'" in message()


@pytest.mark.parametrize("name", ["mu", "fedprox.mu", "ProxHead.mu"])
def test_a_field_of_a_method_is_named_with_its_table(name):
    assert f"no field '{name}'; a field of the method is written algorithm.mu\n" in message(
        "--algorithm.name", "fedprox", f"--{name}", "1"
    )


def test_a_mistake_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("HPCFED_DATA__ALPHA", "-1")
    assert message() == "environment: HPCFED_DATA__ALPHA: input should be greater than 0, got '-1'"
    monkeypatch.setenv("HPCFED_DATA__ALPHA", "1")
    monkeypatch.setenv("HPCFED_DATA__ALFA", "1")
    assert message().startswith(
        "environment: HPCFED_DATA__ALFA: no field 'alfa'; did you mean 'alpha'?\n  Data takes"
    )
    monkeypatch.delenv("HPCFED_DATA__ALFA")
    monkeypatch.setenv("HPCFED_ROUNS", "1")
    assert message().startswith(
        "environment variable HPCFED_ROUNS: no field 'rouns'; did you mean 'rounds'"
    )


def test_a_value_in_place_of_a_table_is_refused_under_a_table_of_a_higher_layer(
    job_file, monkeypatch
):
    data = job_file('data = "cifar10"\n', "data.toml")
    method = job_file('algorithm = "fedprox"\n', "method.toml")
    shift = job_file("data.shift = 3\n", "shift.toml")
    table = job_file('[data]\nalpha = 0.1\n[algorithm]\nname = "ditto"\n', "table.toml")
    extending = job_file("extends = ['data.toml']\n[data]\nalpha = 0.1\n", "extending.toml")
    write = '; write [data] name = "cifar10", --data.name cifar10 or HPCFED_DATA__NAME=cifar10'
    expected = f"{data}: data: must be a table, got 'cifar10'{write}"
    for words in ([data], [data, table], [data, "--data.alpha", "0.1"], [extending]):
        assert message(*words) == expected
    assert '[algorithm] name = "fedprox"' in message(method, "--algorithm.weighting", "uniform")
    # its value is not lost with the parameters of the method of table.toml
    assert message(method, table, "--algorithm.name", "fedavg").startswith(f"{method}: algorithm")
    assert message(shift, "--data.shift.noise", "0.1").startswith(f"{shift}: data.shift: must be a")
    both = message(data, method, "--data.alpha", "0.1", "--algorithm.name", "fedavg")
    assert f"{data}: data: must" in both and f"{method}: algorithm: must" in both

    with monkeypatch.context() as variables:
        variables.setenv("HPCFED_DATA", "cifar10")
        assert message(table, "--data.test_share", "0.5") == (
            f"environment: HPCFED_DATA: must be a table, got 'cifar10'{write}"
        )
        assert message(data).count("cifar10'") == 2
    with monkeypatch.context() as variables:
        variables.setenv("HPCFED_LOCAL", "0.5")
        assert message("--local.batch", "8").startswith(
            "environment: HPCFED_LOCAL: must be a table, got '0.5'; write its fields, as"
        )
    with monkeypatch.context() as variables:
        variables.setenv("HPCFED_DATA", '{"shift": 3}')
        assert "HPCFED_DATA: must be a table, got 3" in message("--data.shift.noise", "0.1")


def test_a_table_in_place_of_a_value_is_refused_under_a_value_of_a_higher_layer(
    job_file, monkeypatch
):
    table = job_file("[rounds]\nmost = 3\n", "table.toml")
    plain = job_file("rounds = 5\n", "plain.toml")
    expected = (
        f"{table}: rounds: must be one value, not a table, got {{'most': 3}}; write rounds = ..., "
        "--rounds ... or HPCFED_ROUNDS=..."
    )
    for words in ([table], [table, plain], [plain, table], [table, "--rounds", "5"]):
        assert message(*words) == expected
    nested = job_file("[data.alpha]\na = 1\n[algorithm.name]\nb = 1\n", "nested.toml")
    refused = message(nested, "--data.alpha", "0.1")
    assert f"{nested}: data.alpha: must" in refused and f"{nested}: algorithm.name: must" in refused
    monkeypatch.setenv("HPCFED_DATA", '{"alpha": {"a": 1}}')
    assert message("--data.alpha", "0.1").startswith("environment: HPCFED_DATA: must be one value")


def test_a_value_in_place_of_a_table_is_refused_in_stored_jobs_presets_and_calls(monkeypatch):
    flags = ["--local.batch", "8"]
    with pytest.raises(
        ConfigError, match="the job stored in runs/a: local: must be a table, got 0.5"
    ):
        load(["--resume", "runs/a", *flags], lambda path: {"local": 0.5})
    with pytest.raises(ConfigError, match="hpcfed.run: local: must be a table, got 0.5"):
        load([], arguments=Given(fields={"local": 0.5}))
    with pytest.raises(ConfigError, match="the job: local: must be a table, got 0.5"):
        load(flags, arguments=Given(job={"local": 0.5}))
    monkeypatch.setattr("hpcfed.config.load.read_preset", lambda *names: {"local": 0.5})
    assert message(*flags).startswith("preset paper: local: must be a table, got 0.5")


def test_a_mistake_in_an_extended_file_names_that_file(job_file):
    below = job_file("[data]\nalpha = -1.0\n[local]\nepoch = 3\n", "below.toml")
    path = job_file("extends = ['below.toml']\nrounds = 0\n")
    text = message(path)
    assert f"{path}: rounds: input should be greater than 0, got 0" in text
    assert f"{below}: data.alpha: input should be greater than 0, got -1.0" in text
    assert (
        f"{below}: local.epoch: no field 'epoch'; did you mean 'epochs'?\n  Local takes: " in text
    )


def test_a_mistake_in_the_stored_job_names_the_run():
    with pytest.raises(ConfigError, match=r"the job stored in runs/a: data.old: no field 'old'"):
        load(["--resume", "runs/a"], lambda path: {"data": {"old": 1}})


def test_a_rule_between_parameters_has_its_own_message():
    text = message(
        "--algorithm.name", "fedprox", "--models.mix", "mlp", "--algorithm.sampling", "size"
    )
    assert text.startswith(
        "algorithm: sampling = 'size' with weighting = 'samples' counts sizes twice"
    )


@pytest.mark.parametrize(
    "words", [["job"], ["--rounds", "2", "job"], ["-rounds", "2"], ["a.toml", "job"]]
)
def test_a_word_that_is_neither_job_file_nor_value_is_refused(words):
    assert "is neither a job file (.toml) nor the value of a --field" in message(*words)


def test_job_files_come_before_all_flags():
    assert message("--rounds", "2", "b.toml") == (
        "command line: b.toml: job files come before all flags; later ones override earlier ones"
    )


def test_of_several_job_files_later_ones_win_as_over_files_that_they_extend(job_file):
    job_file("clients = 3\nseed = 5\n[data]\nalpha = 0.1\n", "base.toml")
    base = job_file("rounds = 1\nclients = 4\n[local]\nlr = 0.5\n", "a.toml")
    second = job_file("extends = ['base.toml']\nrounds = 2\n[local]\nbatch = 8\n", "b.toml")
    last = job_file("rounds = 3\n", "c.toml")
    job = load([base, second, last, "--seed", "6"])
    # b.toml lies over a.toml with all that it extends
    assert (job.rounds, job.clients, job.seed, job.data.alpha) == (3, 3, 6, 0.1)
    assert (job.local.lr, job.local.batch) == (0.5, 8)
    assert load([last, base]).rounds == 1
    extending = job_file("extends = ['a.toml', 'b.toml']\nrounds = 3\n", "d.toml")
    assert load([extending, "--seed", "6"]).plain() == job.plain()


def test_a_later_job_file_of_another_algorithm_leaves_the_earlier_ones_fields_behind(job_file):
    mlp, name = 'models.mix = ["mlp"]\n', "[algorithm]\nname = "
    base = job_file(f'{mlp}{name}"fedprox"\nmu = 0.5\nweighting = "uniform"\n', "a.toml")
    other = job_file(f'{name}"fedavg"\n', "b.toml")
    unnamed = job_file("[algorithm]\nmu = 0.25\n", "c.toml")
    assert load([base, other]).algorithm.weighting == "samples"
    extending = job_file("extends = ['b.toml']\n", "d.toml")  # which names it
    assert load([base, extending]).algorithm.weighting == "samples"
    changed = load([base, unnamed]).algorithm
    assert (changed.mu, changed.weighting) == (0.25, "uniform")


def test_parameters_in_a_file_without_a_method_go_to_the_method_that_is_named(
    job_file, monkeypatch
):
    mix = 'models.mix = ["mlp"]\n'
    fields = job_file(f"{mix}[algorithm]\nmu = 3\n", "fields.toml")
    fedprox = job_file('[algorithm]\nname = "fedprox"\n', "fedprox.toml")
    extending = job_file(
        "extends = ['fields.toml']\n[algorithm]\nname = \"fedprox\"\n", "extending.toml"
    )
    named = [fields, "--algorithm.name", "fedprox"]
    for words in (named, [fields, fedprox], [extending]):
        job = load(words)
        assert job.algorithm.mu == 3 and job.origins()["algorithm.mu"] == fields
    call = Given(job={"models": {"mix": ["mlp"]}, "algorithm": {"mu": 3}})
    assert load(named[1:], arguments=call).algorithm.mu == 3
    assert f"{fields}: algorithm.mu: no field 'mu'" in message(fields, "--algorithm.name", "fedavg")
    monkeypatch.setenv("HPCFED_ALGORITHM__NAME", "fedprox")
    assert load([fields]).algorithm.mu == 3


def test_a_mistake_in_one_of_several_job_files_names_that_file(job_file):
    base = job_file("rounds = 0\n[data]\nalpha = -1.0\n", "a.toml")
    second = job_file("rounds = -1\n", "b.toml")
    text = message(base, second)
    assert f"{second}: rounds: input should be greater than 0, got -1" in text
    assert f"{base}: data.alpha: input should be greater than 0, got -1.0" in text
    assert f"{base}: rounds" not in text
    assert message(base, f"{base}.toml").startswith(f"{base}.toml: cannot read the job file: ")


def test_a_job_knows_the_file_flag_or_variable_of_each_value(job_file, monkeypatch):
    monkeypatch.setenv("HPCFED_LOCAL__BATCH", "8")
    below = job_file("clients = 3\nseed = 1\n[data]\nalpha = 0.1\n", "below.toml")
    base = job_file("extends = ['below.toml']\nrounds = 1\npreset = 'authors'\n", "a.toml")
    second = job_file("rounds = 2\nseed = 2\n", "b.toml")
    job = load([base, second, "--local.lr", "0.5", "--models.mix=mlp"])
    expected = {
        "rounds": second,
        "seed": second,
        "preset": base,
        "clients": below,
        "data.alpha": below,
        "local.lr": "command line: --local.lr",
        "models.mix": "command line: --models.mix",
        "local.batch": "environment: HPCFED_LOCAL__BATCH",
        "algorithm.tau": "preset authors",
    }
    origins = job.origins()
    assert {name: origins.get(name) for name in expected} == expected
    assert "participation" not in origins  # the job's own default
    assert load([]).origins()["rounds"] == "the embedded job"
    monkeypatch.delenv("HPCFED_LOCAL__BATCH")
    sgd = load([job_file('[models]\nmix = ["mlp"]\n[algorithm]\nname = "fedsgd"\n')])
    assert sgd.origins()["local.lr"] == "default of fedsgd"


def test_defaults_of_a_method_come_before_the_embedded_job_and_after_what_a_user_sets(monkeypatch):
    words = ["--algorithm.name", "scaffold", "--models.mix", "mlp"]
    job = load(words)
    assert (job.local.lr, job.origins()["local.lr"]) == (0.1, "default of scaffold")
    assert (job.local.batch, job.origins()["local.batch"]) == (16, "the embedded job")
    job = load([*words, "--local.lr", "0.3"])
    assert (job.local.lr, job.origins()["local.lr"]) == (0.3, "command line: --local.lr")
    monkeypatch.setenv("HPCFED_LOCAL__LR", "0.2")
    assert load(words).local.lr == 0.2
    assert load([*words, "--algorithm.name", "fedavg"]).local.lr == 0.2
    monkeypatch.delenv("HPCFED_LOCAL__LR")
    assert load([*words, "--algorithm.name", "fedavg"]).local.lr == 5e-4


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        (
            {"epoch": 2},
            "default of wrong: local.epoch: no field 'epoch'; did you mean 'epochs'?",
        ),
        ({"local.lr": 0.05}, "no field 'local.lr'; did you mean 'lr'?"),
        ({"lr": -0.05}, "default of wrong: local.lr: input should be greater than 0, got -0.05"),
        ({"lr": "fast"}, "default of wrong: local.lr: "),
    ],
)
def test_a_default_of_a_users_method_that_its_field_does_not_take_is_refused(
    defaults, message, monkeypatch
):
    monkeypatch.setattr(Scaffold, "local_defaults", defaults)
    with pytest.raises(ConfigError) as error:
        load(["--algorithm.name", "scaffold", "--models.mix", "mlp"])
    assert message.replace("wrong", "scaffold") in str(error.value)


def test_files_that_cannot_be_used_are_named(job_file, tmp_path):
    assert message(str(tmp_path / "no.toml")) == (
        f"{tmp_path}/no.toml: cannot read the job file: No such file or directory; check the path"
    )
    assert "not a TOML file: " in message(job_file("rounds = \n"))
    assert "extends must be a list of file names, got 'a.toml'" in message(
        job_file("extends = 'a.toml'\n")
    )
    assert f"(which {tmp_path}/job.toml extends)" in message(job_file("extends = ['no.toml']\n"))
    assert "extends itself" in message(job_file("extends = ['job.toml']\n"))


def test_a_method_is_refused_with_models_that_it_does_not_accept():
    text = message("--algorithm.name", "fedavg", "--models.mix", "mlp,cnn")
    assert text.startswith(
        "fedavg needs one architecture, but models.mix has cnn, mlp\n  use local or fedclassavg"
    )
    assert "needs one architecture" in message(
        "--algorithm.share", "all", "--models.mix", "mlp,cnn"
    )


def test_a_jobs_identity_has_all_fields_that_results_depend_on():
    plain = load(["--rounds", "3"])
    assert (
        plain.identity()
        == load(["--rounds", "9", "--out", "x", "--verbose", "--checkpoint.every", "1"]).identity()
    )
    assert plain.identity() == load(["--rounds", "3", "--data.label", "mine"]).identity()
    assert plain.identity() != load(["--seed", "1"]).identity()


PRIVATE = "--algorithm.name fedavg --models.mix mlp --privacy.clip 1 --privacy.noise 1"
CYCLIC = f"{PRIVATE} --privacy.by correlated --selection.by cyclic --clients 20"


@pytest.mark.parametrize(
    ("flags", "depends"),
    [
        ("--local.schedule cosine", True),
        ("--local.schedule step --local.milestones 2", False),
        ("--selection.by e3cs --selection.quota_after 0.25 --participation 0.5", True),
        ("--selection.by e3cs --participation 0.5", False),
        ("--algorithm.name fedkd --models.proxy mlp", True),
        ("--algorithm.name fedkd --models.proxy mlp --algorithm.energy_start 0.98", False),
        ("--algorithm.name fedsam --models.mix mlp --algorithm.average_every 1", True),
        ("--algorithm.name fedsam --models.mix mlp", False),
        (f"{CYCLIC} --participation 0.2", True),
        (f"{CYCLIC} --participation 0.2 --privacy.mechanism tree", False),
    ],
)
def test_a_job_of_more_rounds_is_another_one_where_a_round_depends_on_their_number(flags, depends):
    one, other = (load([*flags.split(), "--rounds", n]).identity() for n in ("8", "16"))
    assert (one != other) == depends


def test_a_job_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load([]).rounds = 3


def test_the_folder_of_a_run_is_named_after_what_runs():
    assert load(["--seed", "4"]).folder == Path("runs/fedclassavg-digits-dirichlet-seed4")
    assert load(["--out", "x/y"]).folder == Path("x/y")


def test_reading_a_file_gives_the_origin_of_each_table(job_file):
    below, top = (
        job_file("seed = 1\n", "below.toml"),
        job_file("extends = ['below.toml']\nrounds = 2\n"),
    )
    layers = [layer[:2] for layer in read(Path(top))]
    assert layers == [(below, {"seed": 1}), (top, {"rounds": 2})]


def test_types_are_described_in_words():
    kinds = {name: kind_of(field.annotation) for name, field in Job.model_fields.items()}
    assert (kinds["rounds"], kinds["out"], kinds["preset"]) == (
        "int",
        "Path or none",
        "'paper' or 'authors'",
    )
    assert kind_of(tuple[int, ...]) == "tuple of int"


def test_another_algorithm_on_the_command_line_leaves_the_files_own_parameters_behind(job_file):
    method = '[algorithm]\nname = "fedprox"\nmu = 0.5\nweighting = "uniform"\n'
    path = job_file(f'rounds = 3\n{method}[models]\nmix = ["mlp"]\n')
    job = load([path, "--algorithm.name", "fedavg"])
    assert (job.algorithm.name, job.algorithm.weighting, job.rounds) == ("fedavg", "samples", 3)
    assert "algorithm.weighting" not in job.origins() and job.origins()["rounds"] == path
    assert load([path]).algorithm.mu == 0.5


def test_a_flag_of_another_method_leaves_behind_parameters_of_the_one_that_variables_name(
    job_file, monkeypatch
):
    path = job_file('models.mix = ["mlp"]\n[algorithm]\nname = "ditto"\nlam = 2\n')
    monkeypatch.setenv("HPCFED_ALGORITHM__MU", "0.5")
    assert load([path, "--algorithm.name", "fedprox"]).algorithm.mu == 0.5  # no variable names one
    monkeypatch.setenv("HPCFED_ALGORITHM__NAME", "FedProx")
    monkeypatch.setenv("HPCFED_ALGORITHM__WEIGHTING", "uniform")
    for words in ([], ["--algorithm.name", "fedprox"]):
        assert load([path, *words]).algorithm.mu == 0.5
    job = load([path, "--algorithm.name", "fedavg"])
    assert (job.algorithm.name, job.algorithm.weighting) == ("fedavg", "samples")
    assert "algorithm.weighting" not in job.origins()


def test_of_a_flag_given_twice_the_last_counts():
    assert load(["--models.mix", "mlp,cnn", "--seed", "1", "--models.mix", "cnn"]).models.mix == (
        "cnn",
    )
    assert load(["--overwrite", "--no-overwrite"]).overwrite is False


def test_a_file_that_names_another_algorithm_leaves_that_ones_fields_behind(tmp_path):
    fedprox = 'rounds = 7\nmodels.mix = ["mlp"]\n[algorithm]\nname = "fedprox"\n'
    (tmp_path / "a.toml").write_text(fedprox + 'mu = 0.5\nweighting = "uniform"\n')
    (tmp_path / "b.toml").write_text('extends = ["a.toml"]\n[algorithm]\nname = "fedavg"\n')
    (tmp_path / "c.toml").write_text(
        'extends = ["a.toml"]\n[algorithm]\nname = "fedprox"\nmu = 0.25\n'
    )
    other, same = (load([str(tmp_path / name)], environ={}) for name in ("b.toml", "c.toml"))
    assert (other.rounds, other.algorithm.name, other.algorithm.weighting) == (
        7,
        "fedavg",
        "samples",
    )
    assert (same.algorithm.mu, same.algorithm.weighting) == (0.25, "uniform")


def test_help_fits_a_screen_and_shows_the_values_of_the_command(job_file):
    text = help(["--help"])
    assert len(text.splitlines()) <= 30 and max(map(len, text.splitlines())) <= 80
    assert "--rounds 40 " in text and "--local.lr 0.0005 " in text  # of the embedded job
    assert len(MAIN) == 10 and all(f"--{name} " in text for name in MAIN)
    path = job_file("rounds = 7\n")
    page = help([path, "--help", "--local.lr", "0.5"])
    assert "--rounds 7 " in page and "--local.lr 0.5 " in page and path in page
    assert help(["--help", path, "--local.lr", "0.5"]) == page
    other = job_file("rounds = 8\n", "other.toml")
    both = help([path, other, "--local.lr", "0.5", "--help"])
    assert "--rounds 8 " in both and f"({path}, {other})" in both
    assert help([path, "--local.lr", "0.5", "--help", other]) == both


def test_help_of_a_field_names_the_source_of_its_value(job_file, monkeypatch):
    assert "value:       0.0005, from the embedded job" in help(["--help", "local.lr"])
    assert "default:     0.001" in help(["--help", "lr"])
    path = job_file("[local]\nlr = 0.25\n")
    assert f"0.25, from {path}" in help([path, "--help", "local.lr"])
    over = job_file("[local]\nbatch = 3\n", "over.toml")
    assert f"0.25, from {path}" in help([path, over, "--help", "local.lr"])
    assert f"3, from {over}" in help([path, over, "--help", "local.batch"])
    assert "0.5, from command line" in help([path, "--local.lr", "0.5", "--help=local.lr"])
    monkeypatch.setenv("HPCFED_LOCAL__LR", "0.75")
    assert "0.75, from environment: HPCFED_LOCAL__LR" in help([path, "--help", "local.lr"])


def test_help_gives_a_methods_parameters_and_all_fields_of_a_table():
    assert "--algorithm.mu 0.1  (float, >= 0)" in help(["--help", "fedprox"])
    section = help(["--help", "data"])
    assert "--data.alpha 0.5" in section and "--local.lr" not in section
    both = help(["--help", "local"])  # a table and a method
    assert "--local.lr 0.0005" in both and "--algorithm.contrastive" in both


def test_help_spells_flags_as_they_are_typed():
    assert "--dry-run false" in help(["--help", "job"]) and "dry_run" not in help(["--help"])


def test_help_of_a_command_that_is_refused_says_why_and_shows_the_embedded_job():
    text = help(["--clients", "0", "--help"])
    assert "--clients 20 " in text and "would be refused: command line: --clients:" in text


def test_an_unknown_topic_of_help_is_refused_with_the_nearest_alone():
    with pytest.raises(ConfigError, match="no field, section or method 'alpa'") as error:
        help(["--help", "alpa"])
    assert "did you mean 'alpha'" in str(error.value) and len(str(error.value)) < 120


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rounds = true", "rounds: takes a number, got true"),
        ("[local]\nlr = false", "local.lr: takes a number, got false"),
        ("[local]\nsteps = true", "local.steps: takes a number, got true"),
        ("[local]\nbetas = [0.5, true]", "local.betas: takes a number, got true"),
        ("[algorithm]\nname = 'fedprox'\nmu = true", "algorithm.mu: takes a number, got true"),
        ("[system]\ndeadline = true", "system.deadline: takes a number, got true"),
    ],
)
def test_true_and_false_are_no_numbers(job_file, text, told):
    path = job_file(text + "\n")
    assert message(path) == f"{path}: {told}"


def test_a_path_has_the_users_folder_for_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    job = load(["--out", "~/runs/a", "--data.root", "~"])
    assert (job.out, job.data.root) == (tmp_path / "runs/a", tmp_path)
    assert "there is no such user" in message("--out", "~nobody-of-this-name/a")
    assert load(["--out", "./~"]).out == Path("~")


def test_a_path_of_2000_parts_is_refused():
    assert "a path has at most 200 parts, got 2000" in message("--out", "/".join("a" * 2000))


def test_a_chain_of_3000_files_is_refused_before_they_are_read(tmp_path, monkeypatch):
    for i in range(3000):
        (tmp_path / f"{i}.toml").write_text(f'extends = ["{i + 1}.toml"]\n')
    paths, parse = [], files.parse
    monkeypatch.setattr(files, "parse", lambda path, by: paths.append(path) or parse(path, by))
    assert message(str(tmp_path / "0.toml")).startswith(
        f"{tmp_path / '0.toml'}: extends more than 100 files"
    )
    assert len(paths) == 101


def test_a_chain_of_100_files_is_read(tmp_path):
    for i in range(100):
        (tmp_path / f"{i}.toml").write_text(f'extends = ["{i + 1}.toml"]\n')
    (tmp_path / "100.toml").write_text("rounds = 7\n")
    assert load([str(tmp_path / "0.toml")]).rounds == 7
