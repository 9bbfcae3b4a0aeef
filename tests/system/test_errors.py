"""A user's mistake is one message and status 2: no traceback, no hang, on one rank and on two."""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.storage import checkpoint, names
from tests.mpirun import mpirun
from tests.system.live import started
from tests.system.several import LIMIT, SMALL, together

MAIN = ("-m", "hpcfed.main")


def flags(text: str) -> list[str]:
    return [*SMALL, *text.split()]


# By name: flags, where {desk} is the folder below, and what the message must hold.
MISTAKES: dict[str, tuple[str, list[str]]] = {
    "field": ("--data.alfa 1", ["no field 'data.alfa'; did you mean 'data.alpha'"]),
    "field_in_file": (
        "{desk}/wrong.toml",
        ["wrong.toml: data.alfa: no field 'alfa'; did you mean 'alpha'?"],
    ),
    "job_file": ("{desk}/none.toml", ["none.toml: cannot read the job file"]),
    "algorithm": ("--algorithm.name fedprx", ["no algorithm 'fedprx'; did you mean 'fedprox'"]),
    "model": ("--models.mix mlp,resnet180", ["no model 'resnet180'; did you mean 'resnet18'"]),
    "data_set": ("--data.name cifar11", ["no data set 'cifar11'; did you mean 'cifar1"]),
    "preset": ("--preset author", ["--preset: input should be 'paper' or 'authors', got 'author'"]),
    "partition": (
        "--data.partition iidd",
        ["--data.partition: input should be 'iid'", "got 'iidd'"],
    ),
    "type": ("--local.lr fast", ["--local.lr: input should be a valid number", "got 'fast'"]),
    "range": (
        "--participation 1.5",
        ["--participation: input should be less than or equal to 1, got '1.5'"],
    ),
    "two_mistakes": ("--rounds 0 --data.alpha -1", ["--rounds: input", "--data.alpha: input"]),
    "classes": (
        "--data.partition classes --data.classes_per_client 11",
        ["classes_per_client", "11", "10"],
    ),
    "no_users": ("--data.partition natural", ["natural", "no users"]),
    "no_files": (
        "--data.name cifar10 --data.root {desk}/nothing --no-data.download",
        ["{desk}/nothing", "cifar-10-batches-py/data_batch_1", "--data.root"],
    ),
    "too_little": ("--clients 20 --data.train_limit 10", ["20 clients cannot share 10 examples"]),
    "no_partition_file": ("--data.partition_file {desk}/none.h5", ["{desk}/none.h5"]),
    "unwritable": (
        "--out {desk}/wrong.toml/run",
        ["cannot make the folder {desk}/wrong.toml/run: Not a directory"],
    ),
    "mixed": (
        "--algorithm.name fedavg",
        ["fedavg needs one architecture", "fedhenn-1, mlp", "fedclassavg"],
    ),
    "small_images": (
        "--models.mix googlenet --data.name {desk}/small.npz",
        ["googlenet", "at least 15x15", "[1, 8, 8]", "resnet18"],
    ),
    "damaged_npz": ("--data.name {desk}/damaged.npz", ["{desk}/damaged.npz: cannot be read"]),
    "damaged_hdf5": ("--data.name {desk}/damaged.h5", ["{desk}/damaged.h5: cannot be read"]),
    "bad_label": ("--data.name {desk}/label.npz", ["label.npz: y_train: value -1 at index 3"]),
    "listed": ("--models.assign listed", ["models.assign = 'listed'", "2 for 4"]),
    "own_server": (
        "--algorithm.name tests.system.mistaken:Server --models.mix mlp",
        ["mistaken.py, line ", "Server.server returns None"],
    ),
    "own_loss": (
        "--algorithm.name tests.system.mistaken:Loss --models.mix mlp",
        ["mistaken.py, line ", "Loss.loss has changed the model", "torch.float16"],
    ),
    "own_model": (
        "--algorithm.name fedavg --models.mix tests.system.mistaken:Net",
        ["mistaken.py, line ", "[2, 1, 16, 16]", "gets 256 values and was made for 400"],
    ),
    "no_gpu": ("--run.device cuda", ["run.device = 'cuda'", "no GPU"]),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """Files with something wrong in each."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "nothing").mkdir()
    (folder / "wrong.toml").write_text("[data]\nalfa = 1\n")
    x, y = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4
    np.savez(folder / "small.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    np.savez(
        folder / "label.npz",
        x_train=x,
        y_train=np.where(np.arange(40) == 3, -1, y),
        x_test=x,
        y_test=y,
    )
    (folder / "damaged.npz").write_bytes((folder / "small.npz").read_bytes()[:3000])
    (folder / "damaged.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(2000))
    return folder


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def outcomes(request, desk, tmp_path_factory):
    """Every mistake, one after the other in the same processes."""
    cases = {name: flags(text.format(desk=desk)) for name, (text, _) in MISTAKES.items()}
    for name in ("field_in_file", "job_file"):
        cases[name] = cases[name][len(SMALL) :]
    for name, words in cases.items():
        if "--out" not in words:
            words += ["--out", str(desk / "out" / name)]
    return together(request.param, tmp_path_factory.mktemp("said"), cases)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message_and_status_2_on_every_rank(outcomes, desk, name):
    assert [outcome.status for outcome in outcomes[name]] == [2] * len(outcomes[name])
    first, *others = outcomes[name]
    assert first.err.startswith("hpcfed: ")
    assert first.err.count("hpcfed: ") == 1
    assert "Traceback" not in first.err
    assert [outcome.err + outcome.out for outcome in others] == [""] * len(others)
    assert [w for w in MISTAKES[name][1] if w.format(desk=desk) not in first.err] == [], first.err
    assert not (desk / "out" / name / "results.h5").exists()


def ours(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("hpcfed: ")]


def test_mpirun_ends_with_status_2_and_shows_the_message_once(tmp_path):
    done = mpirun(2, *MAIN, "--rouns", "3", check=False, timeout=LIMIT, cwd=tmp_path)
    assert (done.returncode, len(ours(done.stderr))) == (2, 1)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_diverges_ends_all_ranks_and_names_the_place_and_the_last_checkpoint(tmp_path):
    """The learning rate jumps to 1e9 after round 2."""
    leap = "--local.optimiser sgd --local.schedule step --local.milestones 2 --local.decay 1e12"
    words = [
        *flags(leap),
        "--rounds",
        "9",
        "--checkpoint.every",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    done = mpirun(2, *MAIN, *words, check=False, timeout=LIMIT)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    message = ours(done.stderr)
    assert message
    for line in message:  # of each rank that met it
        assert line.startswith("hpcfed: rank ")
        assert [
            w
            for w in (" of 2: client ", "the loss is ", " in round ", "epoch ", "batch ")
            if w not in line
        ] == []
        assert "last checkpoint: " in line
    assert any(
        f"last checkpoint: {tmp_path}/run/checkpoints/round-00000" in line for line in message
    ), message


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_method_that_ends_its_process_ends_the_run_with_a_message_and_loses_no_round(
    tmp_path, ranks
):
    words = flags("--algorithm.name tests.system.mistaken:Quits --models.mix mlp --rounds 3")
    words += ["--checkpoint.every", "1", "--participation", "1", "--out", str(tmp_path / "run")]
    done = mpirun(ranks, *MAIN, *words, check=False, timeout=LIMIT)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    (message,) = ours(done.stderr)
    assert (
        "mistaken.py, line " in message and "in local: SystemExit: 0; no hook ends the" in message
    )
    assert checkpoint.saved_rounds(tmp_path / "run") == 1


def test_an_error_on_one_rank_ends_all_ranks_and_is_named(tmp_path):
    """The result file, which only rank 0 writes, becomes a folder while the run goes on."""
    required = [
        "--rounds",
        "100000",
        "--training.engine",
        "eager",
        "--checkpoint.every",
        "0",
        "--checkpoint.required",
        "--out",
        str(tmp_path),
    ]
    with started(2, *SMALL, *required) as job:
        job.until("round 1/")
        names.results_file(tmp_path).unlink()
        names.results_file(tmp_path).mkdir()
        job.ends(2)
    *_, message = ours(job.err)  # before it a warning that they were to be written again
    assert message.startswith(
        f"hpcfed: rank 0 of 2: {names.results_file(tmp_path)}: cannot be written"
    )
