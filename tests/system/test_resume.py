"""--resume goes on with the same bits, or says why not; --overwrite; what is refused stays as it
was.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hpcfed.cli import main as cli
from hpcfed.core.errors import CheckpointError, DataError, HpcfedError, everywhere
from hpcfed.data.partition_file import Partition
from hpcfed.engine.fault_tolerance.supervise import is_finished
from hpcfed.engine.rounds import Rounds
from hpcfed.main import main
from hpcfed.results.state import state
from hpcfed.results.trained.load import load_model
from hpcfed.storage import checkpoint, names, results
from hpcfed.storage.digest import digest
from hpcfed.storage.record import FINISHED
from tests.system.several import LIMIT, SMALL, Outcome, together

pytestmark = pytest.mark.timeout(3 * LIMIT)
DONE, LONGER = 4, 6  # rounds
JOB = [*SMALL, "--checkpoint.every", "1", "--checkpoint.keep", "2", "--data.alpha", "0.6"]
COPIES = (
    "more",
    "earlier",
    "other",
    "cut",
    "altered",
    "named",
    "torn",
    "bent",
    "lost",
    "hopeless",
    "replaced",
    "bare",
    "strange",
    "blank",
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """Runs of 4 and of 6 rounds on one rank, and copies of the first."""
    folder = tmp_path_factory.mktemp("resume")
    jobs = {"done": DONE, "longer": LONGER}
    together(
        1,
        folder / "made",
        {n: [*JOB, "--rounds", str(r), "--out", str(folder / n)] for n, r in jobs.items()},
    )
    for name in COPIES:
        shutil.copytree(folder / "done", folder / name)
    last = {name: names.checkpoint_file(folder / name, DONE) for name in COPIES}
    shorten(part(last["cut"]))
    alter(part(last["altered"]))
    alter(last["named"])
    last["torn"].unlink()
    shorten(last["bent"])
    alter(names.results_file(folder / "lost"))
    for path in names.checkpoint_folder(folder / "hopeless").glob("*.h5"):
        shorten(part(path))
    shutil.rmtree(names.checkpoint_folder(folder / "bare"))
    shutil.rmtree(names.checkpoint_folder(folder / "strange"))
    shutil.copytree(
        names.checkpoint_folder(folder / "longer"), names.checkpoint_folder(folder / "strange")
    )
    shutil.copy(names.partition_file(folder / "longer"), folder / "strange")
    for path in (folder / "blank").rglob("*.h5"):
        if path.name in ("results.h5", "partition.h5"):
            alter(path)
    (folder / "empty").mkdir()
    return folder


def part(index: Path) -> Path:
    """What the one rank wrote."""
    return names.part_file(names.parts_folder(index), 0)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def alter(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


@pytest.fixture(scope="module")
def outcomes(desk) -> dict[str, Outcome]:
    """What rank 0 of two said to each command line; they run in this order."""
    run = {name: str(desk / name) for name in (*COPIES, "done", "empty")}
    before = str(names.checkpoint_file(desk / "earlier", DONE - 1))
    longer = ["--rounds", str(LONGER)]
    cases = {
        "more": ["--resume", run["more"], *longer],
        "earlier": ["--resume", before, *longer],
        "other": ["--resume", run["other"], "--data.alpha", "0.9", "--local.epochs", "2"],
        "cut": ["--resume", run["cut"], "--quiet"],
        "altered": ["--resume", run["altered"]],
        "named": ["--resume", str(names.checkpoint_file(desk / "named", DONE))],
        "torn": ["--resume", run["torn"], *longer],
        "bent": ["--resume", run["bent"], *longer],
        "lost": ["--resume", run["lost"], *longer],
        "blank": ["--resume", run["blank"], *longer],
        "hopeless": ["--resume", run["hopeless"]],
        "bare": ["--resume", run["bare"]],
        "strange": ["--resume", run["strange"], *longer],
        "empty": ["--resume", run["empty"]],
        "absent": ["--resume", run["empty"] + "/no/such/run"],
        "elsewhere": ["--resume", run["more"], "--out", run["empty"]],
        "exists": [*JOB, "--out", run["done"]],
        "fewer": ["--resume", run["done"], "--rounds", str(DONE - 1)],
        "replaced": [*JOB, "--out", run["replaced"], "--overwrite"],
    }
    return {name: ranks[0] for name, ranks in together(2, desk / "said", cases).items()}


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.status == 2
    assert outcome.err.replace("hpcfed: warning: ", "").count("hpcfed: ") == 1
    assert [word for word in words if word not in outcome.err] == [], outcome.err


@pytest.mark.parametrize("name", ["more", "earlier"])
def test_a_finished_run_continues_to_more_rounds_with_the_bits_of_one_run(desk, outcomes, name):
    assert outcomes[name].status == 0
    assert digest(desk / name) == digest(desk / "longer")


def test_a_run_resumed_from_an_earlier_round_keeps_no_later_checkpoint(desk, outcomes):
    assert checkpoint.rounds_of(checkpoint.newest(desk / "earlier")) == LONGER
    assert results.load(desk / "earlier").header["history"][0]["rounds"] == DONE - 1


@pytest.mark.parametrize("step", ["drop later checkpoints", "do the next round"])
def test_a_finished_run_that_is_killed_after_it_was_resumed_earlier_is_not_finished(
    desk, tmp_path, monkeypatch, step
):
    def die(*_: object) -> None:
        raise everywhere(HpcfedError("the machine is switched off"))

    run = tmp_path / "run"
    shutil.copytree(desk / "done", run)
    assert is_finished(run, DONE)
    if step == "drop later checkpoints":
        monkeypatch.setattr(checkpoint, "drop_after", die)
    else:
        monkeypatch.setattr(Rounds, "step", die)
    assert main(["--resume", str(names.checkpoint_file(run, DONE - 1)), "--quiet"]) != 0
    assert results.load(run).rounds == DONE - 1
    assert state(run).word != FINISHED and not is_finished(run, DONE)


def test_another_job_is_refused_with_the_fields_that_differ(desk, outcomes):
    refused(
        outcomes["other"],
        "data.alpha: 0.9 here, 0.6 in the checkpoint",
        "local.epochs: 2 here, 1 in",
    )
    assert digest(desk / "other") == digest(desk / "done")


@pytest.mark.parametrize("name", ["cut", "altered"])
def test_the_newest_intact_checkpoint_is_taken_and_a_damaged_one_named(desk, outcomes, name):
    assert outcomes[name].status == 0
    newest, before = (names.checkpoint_file(desk / name, rounds) for rounds in (DONE, DONE - 1))
    assert f"hpcfed: warning: {part(newest)}: damaged" in outcomes[name].err
    assert f"continues from the checkpoint before it, {before}\n" in outcomes[name].err
    assert digest(desk / name) == digest(desk / "done")


def test_a_damaged_checkpoint_that_is_named_is_refused_and_the_one_before_it_is_offered(
    desk, outcomes
):
    newest, before = (names.checkpoint_file(desk / "named", rounds) for rounds in (DONE, DONE - 1))
    refused(outcomes["named"], f"{newest}: damaged", f"--resume {before}")


def test_without_an_intact_checkpoint_a_resume_is_refused(desk, outcomes):
    refused(outcomes["hopeless"], "no other valid checkpoint", "start anew without --resume")


def test_damaged_results_are_replaced_by_the_copy_that_belongs_to_the_checkpoint(desk, outcomes):
    assert outcomes["lost"].status == 0
    assert f"{names.results_file(desk / 'lost')}: damaged or missing" in outcomes["lost"].err
    assert digest(desk / "lost") == digest(desk / "longer")


def test_without_usable_results_a_run_continues_from_its_checkpoint_and_names_lost_rounds(
    desk, outcomes
):
    """With the job that its checkpoint has, and the weights of a run that lost nothing."""
    outcome, path = outcomes["blank"], names.results_file(desk / "blank")
    assert outcome.status == 0 and f"the records of rounds 1 to {DONE} are lost" in outcome.err
    assert results.set_aside(path).exists()
    record, longer = results.load(desk / "blank"), results.load(desk / "longer")
    assert record.header["job"]["data"] == longer.header["job"]["data"]
    np.testing.assert_array_equal(
        record.column("clients/train_loss")[DONE:], longer.column("clients/train_loss")[DONE:]
    )
    assert np.isnan(record.column("clients/train_loss")[:DONE]).all()
    assert record.column("rounds/lost")[:DONE].tolist() == DONE * [1]
    assert "partition.h5: damaged or missing; it is written again" in outcome.err
    again, first = (
        Partition.load(names.partition_file(desk / run), results.header["run_id"])
        for run, results in (("blank", record), ("longer", longer))
    )
    for ours, theirs in zip([*again.train, *again.test], [*first.train, *first.test], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for command in (["summary"], ["export", "-o", str(desk / "export")], ["report"]):
        assert cli([*command, str(desk / "blank")]) == 0


@pytest.mark.parametrize("name", ["torn", "bent"])
def test_without_its_index_a_checkpoint_is_ignored_and_the_previous_one_used(desk, outcomes, name):
    """As where rank 0 is killed after all parts are written and before their index is."""
    assert outcomes[name].status == 0
    damage = f"{names.checkpoint_file(desk / name, DONE)}: damaged"
    assert (damage in outcomes[name].err) == (name == "bent")
    assert results.load(desk / name).header["history"][0]["rounds"] == DONE - 1
    assert digest(desk / name) == digest(desk / "longer")


def test_a_checkpoint_of_another_run_is_refused_by_all_that_read_it_beside_these_results(
    desk, outcomes
):
    run = desk / "strange"
    refused(outcomes["strange"], f"{names.checkpoint_file(run, LONGER)}: is of another run")
    with pytest.raises(CheckpointError, match="is of another run"):
        digest(run)
    with pytest.raises(CheckpointError, match="is of another run"):
        load_model(run, 0)
    with pytest.raises(DataError, match="is of another run"):
        Partition.load(names.partition_file(run), results.load(run).header["run_id"])


def test_a_resumed_run_is_the_same_run(desk, outcomes):
    ids = {name: results.load(desk / name).header["run_id"] for name in ("done", "more", "longer")}
    assert ids["more"] == ids["done"] != ids["longer"]


@pytest.mark.parametrize("name", ["bare", "empty", "absent"])
def test_a_folder_that_is_not_a_run_cannot_be_resumed(desk, outcomes, name):
    refused(
        outcomes[name],
        {"bare": "no checkpoint here", "empty": "results.h5", "absent": "no/such/run"}[name],
    )
    assert not (desk / "empty" / "no").exists()


def test_a_resumed_run_continues_in_its_own_folder(desk, outcomes):
    refused(outcomes["elsewhere"], "its own folder", str(desk / "more"))


def test_a_folder_that_holds_a_run_is_not_written_over_unless_asked(desk, outcomes):
    folder = desk / "done"
    refused(outcomes["exists"], str(folder), f"--resume {folder}", "--overwrite", "--out")
    assert results.load(folder).rounds == DONE


def test_fewer_rounds_than_are_done_are_refused_and_the_folder_is_free_again(desk, outcomes):
    refused(outcomes["fewer"], f"rounds = {DONE - 1}", f"give {DONE} or more")
    assert not names.lock_file(desk / "done").exists()


def test_overwrite_replaces_the_run_and_its_checkpoints(desk, outcomes):
    assert outcomes["replaced"].status == 0
    assert results.load(desk / "replaced").rounds == 2
    assert checkpoint.rounds_of(checkpoint.newest(desk / "replaced")) == 2
