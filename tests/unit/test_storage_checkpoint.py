"""Checkpoints by client: whole or refused, with the one to use instead."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.errors import CheckpointError
from hpcfed.params import Params
from hpcfed.storage import checkpoint
from hpcfed.storage.checkpoint import newest, open_checkpoint, same_job
from hpcfed.storage.results import Results

REPOSITORY = Path(hpcfed.__file__).parents[1]
REFUSED = r"round-000020.h5: (damaged|not a file of hpcfed)"


def save(run: Path, rounds: int, weight: float = 1.0, clients: int = 3, **header: object) -> Path:
    with checkpoint.writer(run, rounds, header) as writer:
        writer.put("state", Params({"head.weight": torch.full((2, 2), weight)}))
        for k in range(clients):
            writer.put(f"clients/{k}", {"model": Params({"body.weight": torch.full((3,), weight * k)})})
    return newest(run)


def rounds_kept(run: Path) -> list[int]:
    return sorted(map(checkpoint.rounds_of, (run / "checkpoints").iterdir()))


def test_a_checkpoint_comes_back_item_by_item(tmp_path):
    path = save(tmp_path, 20, clients=12, job={"seed": 1})
    assert path == tmp_path / "checkpoints" / "round-000020.h5"
    with open_checkpoint(tmp_path) as saved:
        assert (saved.rounds, saved.header) == (20, {"job": {"seed": 1}})
        assert saved.names() == ["state", *(f"clients/{k}" for k in range(12))]
        assert saved.names("clients/1") == ["clients/1", "clients/10", "clients/11"]
        model = saved.get("clients/2")["model"]
    assert type(model) is Params and model["body.weight"].tolist() == [2, 2, 2]


def test_an_unknown_item_is_refused(tmp_path):
    save(tmp_path, 20)
    with open_checkpoint(tmp_path) as saved, pytest.raises(CheckpointError, match="no item 'clients/7'"):
        saved.get("clients/7")


def test_the_newest_checkpoint_has_most_rounds(tmp_path):
    assert newest(tmp_path) is None
    for rounds in (999_999, 5, 1_000_000):
        save(tmp_path, rounds)
    assert checkpoint.rounds_of(newest(tmp_path)) == 1_000_000


def test_prune_keeps_the_newest(tmp_path):
    checkpoint.prune(tmp_path, keep=2)
    for rounds in (10, 20, 30, 40):
        save(tmp_path, rounds)
    checkpoint.prune(tmp_path, keep=2)
    assert rounds_kept(tmp_path) == [30, 40]


def test_an_abandoned_continuation_can_be_dropped(tmp_path):
    for rounds in (10, 20, 30):
        save(tmp_path, rounds)
    checkpoint.drop_after(tmp_path, 10)
    assert rounds_kept(tmp_path) == [10]


def test_other_names_are_no_checkpoints():
    with pytest.raises(CheckpointError, match="results.h5: not a checkpoint"):
        checkpoint.rounds_of(Path("results.h5"))


def test_a_folder_without_checkpoints_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint here; check the path"):
        open_checkpoint(tmp_path)


def test_a_result_file_is_not_a_checkpoint(tmp_path):
    Results(tmp_path, {}, {}).write()
    with pytest.raises(CheckpointError, match="holds hpcfed-results, not hpcfed-checkpoint"):
        open_checkpoint(tmp_path / "results.h5")


def test_every_truncation_is_refused(tmp_path):
    path = save(tmp_path, 20)
    whole = path.read_bytes()
    for length in {0, 1, 511, 512, 513, *np.linspace(0, len(whole) - 1, 50).astype(int)}:
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=REFUSED):
            open_checkpoint(path)


def test_every_flipped_byte_is_refused(tmp_path):
    path = save(tmp_path, 20)
    whole = path.read_bytes()
    for position in np.linspace(0, len(whole) - 1, 50).astype(int):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with pytest.raises(CheckpointError, match=REFUSED):
            open_checkpoint(path)


def test_a_damaged_checkpoint_offers_the_newest_valid_one(tmp_path):
    good, cut, damaged = (save(tmp_path, rounds) for rounds in (10, 20, 30))
    for path in (cut, damaged):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).startswith(f"{damaged}: damaged")
    assert str(caught.value).endswith(f"resume from it with --resume {good}")


def test_without_another_valid_checkpoint_the_message_says_start_anew(tmp_path):
    path = save(tmp_path, 10)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no other valid checkpoint .* start anew without --resume"):
        open_checkpoint(path)


HALF = """
import sys, pathlib, numpy as np
from hpcfed.storage import checkpoint
with checkpoint.writer(pathlib.Path(sys.argv[1]), 20, {}) as writer:
    writer.put("state", np.zeros(100_000))
    print("half", flush=True)
    sys.stdin.read()
"""


def test_a_writer_killed_half_way_leaves_the_checkpoint_before(tmp_path):
    save(tmp_path, 10)
    command = [sys.executable, "-c", HALF, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"half\n"
        writer.kill()
    with open_checkpoint(tmp_path) as saved:
        assert saved.rounds == 10
    assert len(os.listdir(tmp_path / "checkpoints")) == 2
    save(tmp_path, 30)
    assert rounds_kept(tmp_path) == [10, 30]


def test_the_same_job_passes():
    same_job({"seed": 1, "mix": ("a", "b"), "run": {"threads": 1}}, {"seed": 1, "mix": ["a", "b"]}, {"run"})


def test_fields_of_another_job_are_listed():
    ours = {"local": {"lr": 0.1, "epochs": 1}, "rounds": 50, "algorithm": {"name": "fedprox", "mu": 0.1}}
    theirs = {"local": {"lr": 0.01, "epochs": 1}, "rounds": 20, "algorithm": {"name": "fedavg"}}
    with pytest.raises(CheckpointError) as caught:
        same_job(ours, theirs, ignore={"rounds"})
    assert str(caught.value).splitlines()[1:-1] == [
        "  algorithm.mu: 0.1 here, absent in the checkpoint",
        "  algorithm.name: fedprox here, fedavg in the checkpoint",
        "  local.lr: 0.1 here, 0.01 in the checkpoint",
    ]
