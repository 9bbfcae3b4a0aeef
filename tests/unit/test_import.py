"""`hpcfed import`: command lines of PFLlib and HtFLlib become jobs that are valid and run."""

import tomllib

import pytest

from hpcfed.cli import main
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.launch.pfllib import FAMILIES, METHODS, MODELS, OTHER_FAMILIES, OTHER_METHODS, job_of

OF_TEXT = ("LSTM", "Transformer")
EVERY = [(library, method) for library, methods in METHODS.items() for method in methods]


def table_of(library, line, **options):
    return tomllib.loads(job_of(library, line.split(), **options))


def test_defaults_of_pflib_that_differ_are_in_the_job():
    table = table_of("pfllib", "-data MNIST -m CNN -algo FedAvg")
    assert (table["rounds"], table["clients"]) == (2000, 20)
    assert table["local"] == {"optimiser": "sgd", "lr": 0.005, "batch": 10, "epochs": 1}
    assert table["data"] == {
        "name": "mnist",
        "partition": "dirichlet",
        "alpha": 0.1,
        "sizes": "free",
        "test_share": 1 / 3,
    }
    assert table["evaluate"] == {"every": 1, "before": False, "received": True}


def test_flags_become_fields():
    line = "-data Cifar100 -m ResNet18 -algo FedProx -mu 0.5 -gr 9 -nc 30 -jr 0.35 -ls 2 -lbs 16"
    table = table_of("pfllib", f"{line} -lr 0.1 -eg 3 -cdr 0.2 -dev cpu", generate="noniid - pat")
    assert table["algorithm"] == {"name": "fedprox", "mu": 0.5}
    assert (table["rounds"], table["clients"], table["participation"]) == (9, 30, 10 / 30)
    assert table["models"]["mix"] == ["torchvision:resnet18"]
    assert (table["data"]["partition"], table["data"]["classes_per_client"]) == ("classes", 10)
    assert (table["local"]["epochs"], table["local"]["batch"], table["local"]["lr"]) == (2, 16, 0.1)
    assert (table["evaluate"]["every"], table["system"]["dropout"]) == (3, 0.2)
    assert table["run"]["device"] == "cpu"


def test_fedala_s_share_is_given_in_percent():
    words = ["-algo", "FedALA", "-s", "50"]
    text = job_of("pfllib", words)
    assert tomllib.loads(text)["algorithm"]["share"] == 0.5
    assert not [line for line in text.splitlines() if line.startswith("# -s")]
    assert table_of("pfllib", "-algo FedALA")["algorithm"]["share"] == 0.8


def test_the_rate_decays_each_round_and_any_text_is_true():
    table = table_of("pfllib", "-gr 4 -ld False -ldg 0.9")  # argparse with type=bool
    schedule = {"schedule": "step", "milestones": [1, 2, 3], "decay": 0.9}
    assert schedule.items() <= table["local"].items()


def test_what_has_no_counterpart_is_said_with_the_reason():
    words = ("-algo", "FedAvg", "-go", "mine", "-did", "3", "-mu", "0.1", "-lr", "0.005")
    comments = [line for line in job_of("pfllib", words).splitlines() if line.startswith("# -")]
    assert [comment.split()[1] for comment in comments] == ["-go", "-did", "-mu"]
    assert "algorithm.tau is left out: algorithm.mu = 0.0" in job_of("pfllib", ["-algo", "MOON"])


def test_a_field_that_the_method_replaces_is_left_out_with_the_reason():
    line = "-algo FedRep -ls 2 -pls 3"
    table = table_of("pfllib", line)
    assert table["algorithm"].items() >= {"head_epochs": 3, "body_epochs": 2}.items()
    assert "epochs" not in table["local"]
    assert "# local.epochs is left out: algorithm.head_epochs" in job_of("pfllib", line.split())


@pytest.mark.parametrize(("library", "method"), EVERY)
def test_each_method_becomes_a_valid_job(library, method, tmp_path):
    models = MODELS if library == "pfllib" else FAMILIES
    for model in models:
        data = "Shakespeare" if model in OF_TEXT else "Cifar10"
        words = f"-data {data} -algo {method} -m {model} -nc 4 -gr 3"
        file = tmp_path / "job.toml"
        file.write_text(job_of(library, words.split()))
        job = load([str(file)], environ={})
        assert (job.clients, job.rounds) == (4, 3)


@pytest.mark.parametrize(
    ("library", "line"),
    [
        ("pfllib", "-data MNIST -algo FedAvg -nc 2"),
        ("pfllib", "-data MNIST -algo Ditto -nc 2 -mu 1"),
        ("htfllib", "-data MNIST -m HtFE2 -algo FedProto -nc 2"),
    ],
)
def test_jobs_run(library, line, tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(job_of(library, [*line.split(), "-gr", "1"], generate="iid balance -"))
    small = ("--data.name", "digits", "--data.train_limit", "40", "--models.mix", "cnn")
    assert main(["run", str(file), *small, "--out", str(tmp_path / "run"), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("library", "line", "text"),
    [
        ("pfllib", "-algo FedAvgg", "no algorithm 'FedAvgg'; did you mean 'FedAvg'"),
        ("pfllib", "-algo FedCross", "FedCross has no counterpart"),
        ("pfllib", "-data MNISTT", "no data set 'MNISTT'"),
        ("pfllib", "-data HAR", "HAR has no counterpart"),
        ("pfllib", "-m TextCNN", "TextCNN has no counterpart"),
        ("pfllib", "-nope 3", "-nope 3"),
        ("pfllib", "-lr fast", "fast"),
        ("htfllib", "-m HtFE-img-3 -algo Local", "ResNet-10"),
        ("htfllib", "-m HtFE-img-2 -algo FedAvg", "FedAvg"),
    ],
)
def test_what_is_unknown_gets_one_message_and_status_2(library, line, text, capsys):
    assert main(["import", library, "--", *line.split()]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


def test_no_name_has_a_counterpart_and_none():
    for library, methods in METHODS.items():
        assert not set(methods) & set(OTHER_METHODS[library])
    assert not set(FAMILIES) & set(OTHER_FAMILIES)


def test_a_partition_that_hpcfed_lacks_is_refused():
    with pytest.raises(ConfigError, match="exdir"):
        job_of("pfllib", [], generate="noniid - exdir")
