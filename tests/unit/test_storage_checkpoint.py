"""Checkpoints by client: one whole of many parts, or refused, with the one to use instead."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.core.errors import CheckpointError
from hpcfed.core.params import Params
from hpcfed.storage import checkpoint, names
from hpcfed.storage.checkpoint import newest, open_checkpoint
from hpcfed.storage.checkpoint_parts import About, write_index, write_part
from hpcfed.storage.equality import same_job
from hpcfed.storage.results import Results

REPOSITORY = Path(hpcfed.__file__).parents[1]
REFUSED = r"round-000020.*.h5: (damaged|not a file of hpcfed)"


def save(
    run: Path, rounds: int, weight: float = 1.0, clients: int = 3, ranks: int = 2, **header: object
) -> Path:
    """A checkpoint of so many ranks; client k is on rank k modulo ranks."""
    index, about = names.checkpoint_file(run, rounds), About(rounds, header)
    folder = checkpoint.fresh(index)
    parts = {
        r: write_part(folder, r, items(r, weight, clients, ranks).items()) for r in range(ranks)
    }
    write_index(folder, about, parts)
    return index


def part(index: Path, rank: int) -> Path:
    return names.part_file(names.parts_folder(index), rank)


def items(rank: int, weight: float = 1.0, clients: int = 3, ranks: int = 2) -> dict[str, object]:
    shared = {} if rank else {"state": Params({"head.weight": torch.full((2, 2), weight)})}
    mine = range(rank, clients, ranks)
    return shared | {
        f"clients/{k}": {"model": Params({"body.weight": torch.full((3,), weight * k)})}
        for k in mine
    }


def read(path: Path) -> None:
    """Read all that a checkpoint holds."""
    with open_checkpoint(path) as saved:
        for name in saved.names():
            saved.get(name)


def files(index: Path) -> list[Path]:
    return [index, *sorted(names.parts_folder(index).iterdir())]


def rounds_kept(run: Path) -> list[int]:
    """Of the checkpoints in a run folder; fails if there is anything else."""
    files = sorted((run / "checkpoints").glob("*.h5"))
    assert sorted((run / "checkpoints").iterdir()) == sorted(
        [*files, *map(names.parts_folder, files)]
    )
    return [checkpoint.rounds_of(path) for path in files]


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
    with (
        open_checkpoint(tmp_path) as saved,
        pytest.raises(CheckpointError, match="no item 'clients/7'"),
    ):
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
    without_index(tmp_path, 5)
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


@pytest.mark.parametrize("which", [0, 1, 2], ids=["index", "rank 0", "rank 1"])
def test_every_truncation_is_refused(tmp_path, which):
    index = save(tmp_path, 20)
    path = files(index)[which]
    content = path.read_bytes()
    for length in {0, 1, 511, 512, 513, *np.linspace(0, len(content) - 1, 50).astype(int)}:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=REFUSED):
            read(index)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["index", "rank 0", "rank 1"])
def test_every_flipped_byte_is_refused(tmp_path, which):
    index = save(tmp_path, 20)
    path = files(index)[which]
    content = path.read_bytes()
    for position in np.linspace(0, len(content) - 1, 50).astype(int):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]
        )
        with pytest.raises(CheckpointError, match=REFUSED):
            read(index)


def test_a_part_that_is_missing_or_of_another_checkpoint_is_refused(tmp_path):
    index, other = save(tmp_path, 20), save(tmp_path, 30, weight=2.0)
    second = part(index, 1)
    second.write_bytes(part(other, 1).read_bytes())
    with pytest.raises(
        CheckpointError, match="another part than the one that round-000020.h5 was written with"
    ):
        read(index)
    second.unlink()
    with pytest.raises(CheckpointError, match="rank-0001.h5: cannot be read: .*No such file"):
        read(index)


def test_reading_one_client_opens_only_its_part(tmp_path):
    index = save(tmp_path, 20, clients=4)
    part(index, 0).unlink()
    with open_checkpoint(index) as saved:
        assert saved.get("clients/3")["model"]["body.weight"].tolist() == [3, 3, 3]
        with pytest.raises(CheckpointError, match="rank-0000.h5: cannot be read"):
            saved.get("clients/2")


def test_any_hdf5_tool_finds_all_clients_in_the_index_after_a_move_of_the_folder(tmp_path):
    save(tmp_path / "made", 20, clients=4)
    (tmp_path / "made").rename(tmp_path / "moved")
    with h5py.File(names.checkpoint_file(tmp_path / "moved", 20)) as file:
        assert sorted(file["items/clients"]) == ["0", "1", "2", "3"]
        assert file["items/clients/3/model/body.weight"][...].tolist() == [3, 3, 3]


def test_a_folder_that_cannot_be_looked_at_is_no_folder_of_parts(tmp_path, monkeypatch):
    folder = names.parts_folder(save(tmp_path, 20))
    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    look = os.stat

    def stat(path, **how):
        if str(path).startswith(str(folder)) and how.get("follow_symlinks", True):
            raise stale
        return look(path, **how)

    monkeypatch.setattr(os, "stat", stat)
    checkpoint.drop_after(tmp_path, 20)


def without_index(run: Path, rounds: int) -> Path:
    index = save(run, rounds, job={"seed": 1})
    index.unlink()
    return names.parts_folder(index)


def test_a_checkpoint_that_lacks_its_index_is_unfinished_and_none(tmp_path):
    save(tmp_path, 10)
    folder = without_index(tmp_path, 20)
    assert checkpoint.unfinished_parts(tmp_path) == [folder]
    with open_checkpoint(tmp_path) as saved:
        assert saved.rounds == 10


def test_saving_a_round_again_keeps_the_old_checkpoint_until_the_new_one_is_complete(
    tmp_path,
):
    index = save(tmp_path, 20)
    before = index.read_bytes()
    save(tmp_path, 20, weight=2.0)
    again = names.parts_folder(index, 1)
    with open_checkpoint(index) as saved:
        assert saved.get("clients/1")["model"]["body.weight"][0] == 2
    index.write_bytes(before)  # as if the second writer had been killed before its index
    read(index)
    assert checkpoint.unfinished_parts(tmp_path) == [again]
    checkpoint.prune(tmp_path, keep=2)
    assert not checkpoint.unfinished_parts(tmp_path) and not again.exists()
    read(index)


def test_pruning_spares_the_parts_of_an_index_that_cannot_be_read(tmp_path):
    index = save(tmp_path, 20)
    before = index.read_bytes()
    index.write_bytes(b"")
    checkpoint.prune(tmp_path, keep=1)
    assert part(index, 1).exists()
    index.write_bytes(before)
    read(index)


def test_nothing_is_deleted_for_an_index_that_the_disk_cannot_look_at(tmp_path, monkeypatch):
    index, stat = save(tmp_path, 20), os.stat

    def refuse(path, *args, **kwargs):
        if path == index:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        checkpoint.prune(tmp_path, keep=1)
        assert checkpoint.unfinished_parts(tmp_path) == []
    read(index)


def test_a_damaged_checkpoint_offers_the_newest_valid_one(tmp_path):
    good, cut, damaged = (save(tmp_path, rounds) for rounds in (10, 20, 30))
    for path in (part(cut, 1), damaged):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).startswith(f"{damaged}: damaged")
    assert str(caught.value).endswith(f"resume from it with --resume {good}")


def test_without_another_valid_checkpoint_the_message_says_start_anew(tmp_path):
    path = save(tmp_path, 10)
    path.write_bytes(b"")
    with pytest.raises(
        CheckpointError, match="no other valid checkpoint .* start anew without --resume"
    ):
        open_checkpoint(path)


HALF = """
import sys, pathlib, numpy as np
from hpcfed.storage import checkpoint_parts, names
def items():
    yield "state", np.zeros(100_000)
    print("half", flush=True)
    sys.stdin.read()
folder = names.parts_folder(names.checkpoint_file(pathlib.Path(sys.argv[1]), 20))
checkpoint_parts.write_part(folder, 0, items())
"""


def test_a_writer_killed_half_way_leaves_the_checkpoint_before(tmp_path):
    save(tmp_path, 10)
    command = [sys.executable, "-c", HALF, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout.readline() == b"half\n"
        writer.kill()
    with open_checkpoint(tmp_path) as saved:
        assert saved.rounds == 10
    save(tmp_path, 30)
    checkpoint.prune(tmp_path, keep=2)
    assert rounds_kept(tmp_path) == [10, 30]


def test_the_same_job_passes():
    same_job({"seed": 1, "mix": ("a", "b")}, {"seed": 1, "mix": ["a", "b"]})


def test_fields_of_another_job_are_listed():
    ours = {
        "local": {"lr": 0.1, "epochs": 1},
        "algorithm": {"name": "fedprox", "mu": 0.1},
    }
    theirs = {"local": {"lr": 0.01, "epochs": 1}, "algorithm": {"name": "fedavg"}}
    with pytest.raises(CheckpointError) as caught:
        same_job(ours, theirs)
    assert str(caught.value).splitlines()[1:-1] == [
        "  algorithm.mu: 0.1 here, absent in the checkpoint",
        "  algorithm.name: fedprox here, fedavg in the checkpoint",
        "  local.lr: 0.1 here, 0.01 in the checkpoint",
    ]
