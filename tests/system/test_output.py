"""What a run prints and records, and where its settings come from."""

import json
import re
from pathlib import Path

import pytest

from hpcfed.config.field_docs import field_doc
from hpcfed.config.help import flag, value
from hpcfed.config.limits import limits
from hpcfed.config.load import load
from hpcfed.config.sections import Section
from hpcfed.engine.round_record import COLUMNS
from hpcfed.storage import names, results
from hpcfed.storage.columns import PHASES
from hpcfed.storage.results import Record
from tests import forked
from tests.mpirun import mpirun
from tests.system.several import LIMIT, SMALL, Outcome, together

pytestmark = pytest.mark.timeout(3 * LIMIT)
K, RANKS, ROUNDS = 4, 2, 2  # of SMALL


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("output")


@pytest.fixture(scope="module")
def outputs(desk) -> dict[str, list[Outcome]]:
    """What the ranks of a few runs wrote."""
    cases = {
        name: [*SMALL, "--out", str(desk / name)]
        for name in ("plain", "dry", "quiet", "verbose", "rarely")
    }
    for name in ("plain", "quiet"):
        cases[name] += ["--log.picture", "true"]
    cases["dry"].append("--dry-run")
    cases["quiet"].append("--quiet")
    cases["verbose"].append("--verbose")
    cases["rarely"] += ["--evaluate.every", "2", "--rounds", "3"]
    cases["help"] = ["--help", "all"]
    cases["usage"] = ["--help"]
    outcomes = together(RANKS, desk / "said", cases)
    assert {name: ranks[0].status for name, ranks in outcomes.items()} == dict.fromkeys(cases, 0)
    return outcomes


@pytest.fixture(scope="module")
def record(desk, outputs) -> Record:
    return results.load(desk / "plain")


def test_only_rank_0_speaks(outputs):
    assert {name: ranks[1].out + ranks[1].err for name, ranks in outputs.items()} == dict.fromkeys(
        outputs, ""
    )


def test_a_run_prints_a_line_a_round_a_table_and_its_files(desk, outputs):
    out = outputs["plain"][0].out
    assert [f"round {t}/2  accuracy 0." in out for t in (1, 2)] == [True, True]
    assert "test accuracy" in out and "traffic" in out
    assert out.endswith(f"results: {desk}/plain/results.h5\npicture: {desk}/plain/curves.png\n")
    assert "\x1b" not in out
    assert (desk / "plain" / "curves.png").stat().st_size > 1000


def test_a_round_without_evaluation_shows_no_nan(outputs):
    out = outputs["rarely"][0].out
    assert "round 1/3  train loss" in out and "round 2/3  accuracy 0." in out
    assert "nan" not in out


def test_quiet_prints_the_table_alone(outputs):
    quiet, plain = (outputs[name][0].out.splitlines() for name in ("quiet", "plain"))
    assert not [line for line in quiet if line.startswith("round ")]
    others = [line for line in plain if line.startswith(("moved", "inputs: ", "model "))]
    assert len(quiet) == len(plain) - 2 - ROUNDS - len(others)


def test_verbose_prints_a_line_for_every_client_and_round(outputs):
    out = outputs["verbose"][0].out
    assert [out.count(f"  round {t}  client {k} (") for t in (1, 2) for k in range(K)] == [1] * (
        ROUNDS * K
    )


def test_a_dry_run_prints_the_plan_and_writes_nothing(desk, outputs):
    out = outputs["dry"][0].out
    for word in (
        "data.partition",
        "dirichlet",
        "rank",
        "ids",
        "weights",
        "fedhenn-1",
        "traffic per client and round",
        "local training: about ",
        " in all (a step was measured",
        "checkpoints: each has ",
        "up to 3 are on disk",
        "metrics: accuracy (task: classification)",
    ):
        assert word in out
    assert (
        out.count(f"({4 * (16 * 10 + 10)} bytes)") == 2
    )  # down and up, the head: d = 16, 10 classes
    assert not (desk / "dry").exists()


def fields(model: type[Section], prefix: str = ""):
    """All fields of a job: dotted name, what pydantic knows about it, and its text."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", (field, field_doc(model, name))


def test_help_all_lists_every_field_with_meaning_range_and_the_value_it_would_have(outputs):
    text = " ".join(outputs["help"][0].out.split())
    job = load([])  # with the variables that the run has too
    all_fields = dict(fields(type(job)))
    assert len(all_fields) > 50 and "algorithm.rho" in all_fields
    for name, (field, doc) in all_fields.items():
        entry = re.search(rf"{flag(name)} (?P<text>.*?)(?= --(?!no-)[\w.]+[ ,]|$)", text)
        assert entry, name
        bounds = limits(field)
        assert doc and " ".join(doc.split()) in entry["text"]
        assert bounds in entry["text"] and entry["text"].startswith(f"{value(job, name)} (")


def test_help_under_mpirun_is_printed_once(outputs):
    one, other = outputs["usage"]
    assert (one.out.count("usage: "), one.err, other.out + other.err) == (1, "", "")


def test_results_hold_job_versions_commit_hardware_and_placement(record):
    header = record.header
    assert (header["job"]["clients"], header["job"]["models"]["mix"]) == (K, ["mlp", "fedhenn-1"])
    assert header["job"]["algorithm"]["name"] == "fedclassavg" == header["algorithm"]
    assert {"hpcfed", "python", "torch", "numpy", "h5py", "mpi4py"} <= set(header["versions"])
    assert (header["ranks"], sorted(set(header["placement"])), len(header["placement"])) == (
        RANKS,
        [0, 1],
        K,
    )
    assert header["architectures"] == ["mlp", "fedhenn-1"] * 2
    assert header["hardware"]["cores"] >= 1 and isinstance(header["commit"], str)
    assert json.dumps(header)


def test_results_hold_the_partition(desk, record):
    counts = record.arrays["label_counts"]
    assert (counts.shape, counts.sum()) == ((K, 10), record.arrays["train_sizes"].sum())
    rows, sizes = record.arrays["partition"], record.arrays["train_sizes"]
    assert len(rows) == sizes.sum() == len(set(rows.tolist()))
    assert names.partition_file(desk / "plain").exists()


def test_results_hold_every_column_by_round_and_client_or_rank(record):
    columns = [name.replace("metric", "accuracy") for name in COLUMNS]
    shapes = {f"clients/{name}": (ROUNDS, K) for name in (*columns, "cohort", "lost", "reports")}
    shapes |= {
        f"ranks/{name}": (ROUNDS, RANKS) for name in (*PHASES, "peak_bytes", "peak_device_bytes")
    }
    shapes |= {
        "rounds/seconds": (ROUNDS,),
        "rounds/virtual_seconds": (ROUNDS,),
        "rounds/accuracy_common": (ROUNDS,),
        "rounds/accuracy_pooled": (ROUNDS,),
        "rounds/accuracy_before_pooled": (ROUNDS,),
        "rounds/accuracy_received_pooled": (ROUNDS,),
    }
    assert {name: column.shape for name, column in record.columns.items()} == shapes
    assert set(record.column("clients/up").ravel().tolist()) == {4 * (16 * 10 + 10)}


def test_flags_override_the_environment_of_rank_0_which_overrides_the_file_on_all_ranks(tmp_path):
    """mpirun hands variables to the processes of one node alone: here only rank 0 has them."""
    (tmp_path / "job.toml").write_text(
        "rounds = 1\nseed = 1\nclients = 2\n[models]\nmix = ['mlp']\nd = 8\n"
        "[data]\ntrain_limit = 60\n"
    )
    program = [forked.python(), "-m", "hpcfed.main", str(tmp_path / "job.toml"), "--seed", "3"]
    lines = [
        "HPCFED_ROUNDS=2",
        "HPCFED_SEED=2",
        f"HPCFED_OUT={tmp_path / 'run'}",
        "HPCFED_MODELS__MIX=mlp,cnn",
    ]
    mpirun(1, "env", *lines, *program, ":", "-np", "1", *program, timeout=LIMIT)
    record = results.load(tmp_path / "run")
    job = record.header["job"]
    assert (job["rounds"], job["seed"], job["clients"], job["models"]["d"]) == (2, 3, 2, 8)
    assert (record.header["architectures"], record.header["ranks"], record.rounds) == (
        ["mlp", "cnn"],
        2,
        2,
    )
