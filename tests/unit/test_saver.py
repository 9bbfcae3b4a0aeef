"""Checkpoints in the background: saved is what was; what the disk refuses is tried again, and the
run goes on.
"""

import errno
import os
import sys
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from hpcfed.comm import Comm, Serial
from hpcfed.core.errors import DamagedError, DivergedError, WriteError
from hpcfed.core.exit_status import DONE, RESUME_ME
from hpcfed.data.partition_file import check_seal
from hpcfed.engine import loop, run
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.engine.fault_tolerance.background_save import BackgroundSave
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.round_record import Row
from hpcfed.storage import atomic, checkpoint, checkpoint_parts, names, results, uncached
from hpcfed.storage.digest import digest
from tests import saving
from tests.contract import toy
from tests.saving import refusing
from tests.threads import spmd

FLAGS = (
    "--local.keep_optimiser",
    "true",
    "--local.optimiser",
    "adam",
    "--models.mix",
    "mlp,cnn",
    "--rounds",
    "6",
)
SHARED = ("state", "scores", "time")  # items of a checkpoint that all ranks share
REFUSALS = [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.ESTALE]


def started(comm: Comm, rounds: int = 2, *flags: str):
    going = toy.start(comm, toy.job("local", *FLAGS, *flags))
    for _ in range(rounds):
        going.step()
    return going


def contents(path: Path) -> dict[str, bytes]:
    """All that a run's newest checkpoint holds but for measured times."""
    with checkpoint.open_checkpoint(path) as saved:
        values = {name: saved.get(name) for name in saved.names()}
    del values["scores"]["seconds"]
    return dict(toy.leaves(values))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_checkpoint_does_not_contain_training_during_its_writing(tmp_path, ranks):
    saving.save(started(Serial()), tmp_path / "at once")

    def run(comm: Comm) -> str:
        rounds, go_on = started(comm), Event()
        with BackgroundSave(rounds, tmp_path / "later") as saver:
            saver.thread.submit(
                go_on.wait
            )  # nothing is written before the next round has been trained
            saver.start()
            rounds.step()
            assert saver.writing and saver.pending and checkpoint.newest(tmp_path / "later") is None
            go_on.set()
            return saver.finish()

    assert spmd(ranks, run) == [""] * ranks
    assert contents(tmp_path / "later") == contents(tmp_path / "at once")


def test_ranks_without_clients_write_a_part_too(tmp_path):
    spmd(8, lambda comm: saving.save(started(comm, 1, "--participation", "1"), tmp_path))
    with checkpoint.open_checkpoint(tmp_path) as saved:
        assert len(saved.parts) == 8 and saved.names("clients/") == [
            f"clients/{k}" for k in range(6)
        ]


def test_if_one_rank_cannot_write_its_part_the_previous_checkpoint_stays_and_the_next_is_complete(
    tmp_path, monkeypatch
):
    write = checkpoint_parts.write_part

    def refusing(folder: Path, rank: int, items: object) -> checkpoint_parts.Part:
        if rank == 1 and folder.name == "round-000002":
            raise WriteError("no room on rank 1")
        return write(folder, rank, items)

    def run(comm: Comm) -> list[str]:
        rounds, messages = started(comm, 0), []
        with BackgroundSave(rounds, tmp_path) as saver:
            for _ in range(3):
                rounds.step()
                saver.start()
                messages.append(saver.finish())
                messages.append(rounds.fed.warnings.last_checkpoint[-5:])
        return messages

    monkeypatch.setattr(checkpoint_parts, "write_part", refusing)
    assert spmd(2, run) == 2 * [["", "01.h5", "no room on rank 1", "01.h5", "", "03.h5"]]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*")) == [
        "round-000001",
        "round-000001.h5",
        "round-000003",
        "round-000003.h5",
    ]


def saved_twice(folder: Path) -> Path:
    """Save a run of two ranks after each of two rounds; return the part of rank 1 of the second."""

    def run(comm: Comm) -> None:
        rounds = started(comm, 0)
        for _ in range(2):
            rounds.step()
            saving.save(rounds, folder)

    spmd(2, run)
    return names.part_file(names.parts_folder(checkpoint.newest(folder)), 1)


@pytest.mark.parametrize("damaged_clients", ["those of one rank", "those of several"])
def test_after_a_damaged_checkpoint_a_run_continues_from_the_one_before_as_if_it_were_the_newest(
    damaged_clients: str, tmp_path, capsys
):
    part = saved_twice(tmp_path)
    content = bytearray(part.read_bytes())
    step = len(content) // 2 if damaged_clients == "those of one rank" else 1000
    for i in range(step, len(content), step):
        content[i] ^= 1
    part.write_bytes(content)

    def resumed(comm: Comm, path: Path) -> tuple[int, Any, Row]:
        rounds = started(comm, 0)
        restore(rounds, path)
        return rounds.t, snapshot.take_snapshot(rounds).items, rounds.step()[0]

    got = spmd(3, lambda comm: resumed(comm, tmp_path))
    assert f"{part}: damaged: the checksum does not fit" in capsys.readouterr().err
    want = spmd(3, lambda comm: resumed(comm, names.checkpoint_file(tmp_path, 1)))
    for (t, items, row), (other_t, other_items, other_row) in zip(got, want, strict=True):
        assert t == other_t == 1
        assert toy.differences(items, other_items) == []
        losses = [record["clients/train_loss"] for record in (row, other_row)]
        assert toy.differences(*losses) == []


def test_only_clients_change_before_all_of_a_checkpoint_has_been_read(tmp_path):
    part = saved_twice(tmp_path)
    part.write_bytes(part.read_bytes()[:-1])
    rounds = started(Serial(), 0)
    before = dict(snapshot.items(rounds))
    with pytest.raises(DamagedError, match="resume from it with --resume .*round-000001.h5"):
        restore(rounds, names.checkpoint_file(tmp_path, 2))
    after = dict(snapshot.items(rounds))
    assert rounds.t == 0
    assert toy.differences([before[n] for n in SHARED], [after[n] for n in SHARED]) == []


def test_a_resume_reads_each_part_of_a_checkpoint_once(tmp_path, monkeypatch):
    job = toy.job("fedrep", "--models.mix", "cnn", "--models.d", "2048")
    rounds = toy.start(Serial(), job)
    rounds.step()
    saving.save(rounds, tmp_path)
    part = names.part_file(names.parts_folder(checkpoint.newest(tmp_path)), 0)
    transfer, n_bytes = uncached.Passing.readinto, Counter()

    def count(file: uncached.Passing, buffer: Any) -> int:
        n = transfer(file, buffer)
        n_bytes[file.name] += n
        return n

    monkeypatch.setattr(uncached.Passing, "readinto", count)
    restore(toy.start(Serial(), job), tmp_path)
    size = part.stat().st_size
    assert size < n_bytes[part] < 1.8 * size  # whole MiB, of which some are read twice


def test_a_run_can_be_restored_from_a_snapshot():
    rounds, again = started(Serial()), started(Serial(), 0)
    snapshot.take_up(again, snapshot.take_snapshot(rounds))
    row, other = rounds.step()[0], again.step()[0]
    assert toy.differences(row["clients/train_loss"], other["clients/train_loss"]) == []
    assert (
        toy.differences(
            dict(snapshot.items(again))["clients/4"], dict(snapshot.items(rounds))["clients/4"]
        )
        == []
    )


def test_weights_that_do_not_fill_their_client_s_model_are_refused_as_they_are_taken_up():
    copy, again = snapshot.take_snapshot(started(Serial())), started(Serial(), 0)
    parcel = copy.items["clients/4"]
    parcel["weights"] = parcel["weights"][1:]
    with pytest.raises(ValueError, match="client 4 has weights of shape"):
        snapshot.take_up(again, copy)


def test_a_checkpoint_exists_when_all_parts_are_written_though_no_round_has_ended_since(tmp_path):
    def on_rank(comm: Comm) -> None:
        rounds = started(comm)
        with BackgroundSave(rounds, tmp_path) as saver:
            saver.start()
            comm.barrier()
            if saver.index:
                assert saver.index.result() == ""
                assert checkpoint.saved_rounds(tmp_path) == 2
            comm.barrier()
            assert saver.finish() == ""

    spmd(3, on_rank)
    assert not list(names.checkpoint_folder(tmp_path).glob("*/*.json"))


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_error_in_the_next_round_leaves_the_checkpoint_that_was_being_written(tmp_path, ranks):
    def on_rank(comm: Comm) -> None:
        rounds = started(comm)
        with BackgroundSave(rounds, tmp_path) as saver:
            saver.start()
            comm.barrier()
            raise DivergedError("client 0: the loss is nan")

    with pytest.raises(DivergedError):
        spmd(ranks, on_rank)
    restored = started(Serial(), 0)
    restore(restored, tmp_path)
    assert restored.t == 2


def whole_run(folder: Path, *flags: str) -> int:
    always = ("--checkpoint.every", "1", "--quiet", "--out", str(folder))
    return run.run(toy.job("local", *FLAGS, *always, *flags), Serial())


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("clean")
    whole_run(folder)
    return digest(folder)


@pytest.mark.parametrize("number", REFUSALS, ids=[errno.errorcode[n] for n in REFUSALS])
def test_all_errors_of_the_disk_are_one_class(tmp_path, monkeypatch, number):
    refusing(monkeypatch, number, lambda path: True)
    refusal = pytest.raises(
        WriteError, match=f"a.h5: cannot be written: .*{os.strerror(number)}; make room"
    )
    with refusal, atomic.replace_file(tmp_path / "a.h5", "test") as file:
        file["value"] = 1
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fails_for_some_rounds_causes_only_warnings(
    tmp_path, monkeypatch, capsys, clean
):
    """The parts of rounds 2 to 4, and the results three times; --quiet changes nothing."""
    asked = []

    def now_and_then(path: Path) -> bool:
        asked.extend([path] if "results" in path.name else [])
        return 3 <= len(asked) <= 5 if "results" in path.name else path.parent.name[-1] in "234"

    monkeypatch.setattr(results, "BUDGET", 1e9)  # write in every round
    refusing(monkeypatch, errno.EIO, now_and_then)
    assert whole_run(tmp_path) == DONE
    err = capsys.readouterr().err
    assert err.count("no checkpoint of round") == 3 and os.strerror(errno.EIO) in err
    assert err.count("results stay in memory") == 1 and "Traceback" not in err
    assert (results.load(tmp_path).rounds, digest(tmp_path)) == (6, clean)


@pytest.mark.parametrize("name", ["results.h5", "partition.h5"])
def test_a_bit_that_flips_during_a_run_is_in_no_checkpoint_and_not_in_the_end(
    tmp_path, monkeypatch, capsys, clean, name
):
    """The file's time stays as it was, so only its bytes tell. The results are written again before
    each checkpoint, whether they have changed or not.
    """
    record, path, written = loop.Loop.write, tmp_path / name, []

    def struck(going: loop.Loop, row: dict) -> None:
        record(going, row)
        if path.exists() and not written and going.rounds.t >= 2:
            status, content = path.stat(), bytearray(path.read_bytes())
            written.append(going.rounds.t)
            content[900] ^= 1
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    monkeypatch.setattr(loop.Loop, "write", struck)
    assert whole_run(tmp_path, "--checkpoint.keep", "9") == DONE
    again = capsys.readouterr().err.count("written again from memory")
    assert written and again == (name == "partition.h5")
    for copy in names.checkpoint_folder(tmp_path).glob("*/results.h5"):
        index = names.index_of(copy.parent)
        assert results.load(copy).rounds >= checkpoint.rounds_of(index)
    assert digest(tmp_path) == clean
    check_seal(names.partition_file(tmp_path))


def test_a_copy_of_the_results_beside_an_unfinished_checkpoint_serves_before_it_is_deleted(
    tmp_path, clean
):
    """So it is where rank 0 dies between the copy and the index."""
    whole_run(tmp_path, "--checkpoint.keep", "2")
    last, before = checkpoint.saved(tmp_path)
    last.unlink()
    names.part_file(names.parts_folder(last), 0).unlink()
    names.results_copy(names.parts_folder(before)).unlink()
    names.results_file(tmp_path).write_bytes(b"damaged")
    again = toy.job("local", *FLAGS, "--quiet", "--resume", str(tmp_path))
    assert run.run(again, Serial()) == DONE
    assert digest(tmp_path) == clean


@pytest.mark.parametrize(
    ("flags", "left"), [((), [6]), (("--checkpoint.keep", "2"), [6, 5])], ids=["default", "two"]
)
def test_a_finished_run_has_its_last_checkpoint_alone_unless_the_job_says_how_many(
    tmp_path, monkeypatch, flags, left
):
    """Until its results are finished it has two; it may be extended from the one that is left."""
    conclude, before = loop.Loop.conclude, []

    def noting(going: loop.Loop) -> None:
        before.extend(map(checkpoint.rounds_of, checkpoint.saved(tmp_path)))
        conclude(going)

    monkeypatch.setattr(loop.Loop, "conclude", noting)
    whole_run(tmp_path, *flags)
    assert before == [6, 5]
    assert [*map(checkpoint.rounds_of, checkpoint.saved(tmp_path))] == left
    more = toy.job("local", *FLAGS, "--quiet", "--resume", str(tmp_path), "--rounds", "7")
    assert run.run(more, Serial()) == DONE
    assert checkpoint.saved_rounds(tmp_path) == results.load(tmp_path).rounds == 7


def test_a_run_whose_end_is_not_on_disk_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    refusing(
        monkeypatch, errno.ENOSPC, lambda path: "rank-" in path.name and "round-000006" in str(path)
    )
    assert whole_run(tmp_path) == RESUME_ME
    assert [*map(checkpoint.rounds_of, checkpoint.saved(tmp_path))] == [5, 4]


def test_a_required_checkpoint_that_is_refused_ends_the_run(tmp_path, monkeypatch):
    refusing(
        monkeypatch, errno.ENOSPC, lambda path: "rank-" in path.name and "round-000002" in str(path)
    )
    with pytest.raises(
        WriteError,
        match=r"rank-0000.h5: cannot be written: .*\n  last checkpoint: .*round-000001.h5",
    ):
        whole_run(tmp_path, "--checkpoint.required")
    assert results.load(tmp_path).rounds >= 2


@pytest.mark.parametrize("what", ["rank-", "results"])
def test_a_run_whose_end_cannot_be_written_is_unfinished_and_can_be_continued(
    tmp_path, monkeypatch, clean, what
):
    with monkeypatch.context() as patch:
        saved = names.checkpoint_folder(tmp_path)
        refusing(
            patch,
            errno.ENOSPC,
            lambda path: what in path.name and len(list(saved.glob("*.h5"))) >= 2,
        )
        assert whole_run(tmp_path) == RESUME_ME
    assert run.run(toy.job("local", *FLAGS, "--quiet", "--resume", str(tmp_path)), Serial()) == DONE
    assert digest(tmp_path) == clean


def test_a_slow_disk_is_a_sign_of_life(tmp_path):
    rounds = started(Serial())
    with BackgroundSave(rounds, tmp_path) as saver:
        saver.start()
        beats = rounds.fed.clock.heartbeat.beats
        assert [*saver.with_heartbeat([("a", 1), ("b", 2)])] == [("a", 1), ("b", 2)]
        assert rounds.fed.clock.heartbeat.beats >= beats + 2
        assert saver.finish() == ""


def test_resuming_from_an_early_checkpoint_removes_later_ones(tmp_path):
    whole_run(tmp_path, "--checkpoint.keep", "9")
    saving.save(
        started(Serial(), 0, "--checkpoint.keep", "9"), tmp_path
    )  # as a signal in the first round does
    initial = names.checkpoint_file(tmp_path, 0)
    going = toy.job(
        "local",
        *FLAGS,
        "--quiet",
        "--resume",
        str(initial),
        "--rounds",
        "2",
        "--checkpoint.keep",
        "2",
        "--checkpoint.every",
        "0",
    )
    assert run.run(going, Serial()) == DONE
    assert [checkpoint.rounds_of(path) for path in checkpoint.saved(tmp_path)] == [2, 0]


def test_a_log_on_a_full_disk_ends_no_run(tmp_path, monkeypatch):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        patch.setattr(sys, "stderr", full)
        assert run.run(toy.job("local", *FLAGS, "--out", str(tmp_path)), Serial()) == DONE
        full.close = lambda: None
    assert results.load(tmp_path).rounds == 6
