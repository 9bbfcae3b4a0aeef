"""The output folder of a run is the same on all nodes, and holds nothing that would be lost; or the
run is refused.
"""

from pathlib import Path

import pytest

from hpcfed.comm import Comm
from hpcfed.config.load import load
from hpcfed.core.errors import HpcfedError
from hpcfed.engine import folder
from hpcfed.engine.folder import Claim
from hpcfed.storage import names
from hpcfed.storage.results import Results
from tests.threads import spmd


def enter(comm: Comm, out: Path) -> None:
    """The run folder is claimed and made ready, and released again."""
    job, claim = load(["--out", str(out)], environ={}), Claim()
    try:
        claim.prepare(job, comm, claim.enter(job, comm))
    finally:
        claim.leave()


def test_a_shared_folder_is_accepted_and_left_clean(tmp_path: Path):
    spmd(4, lambda comm: enter(comm, tmp_path / "run"), nodes=2)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_a_run_without_a_round_or_a_checkpoint_may_be_replaced_and_no_other(tmp_path: Path):
    for name, rounds in (("none", 0), ("one", 1)):
        results = Results(tmp_path / name, {}, {})
        for _ in range(rounds):
            results.append({"rounds/seconds": 1.0})
        results.write()
    (tmp_path / "damaged").mkdir()
    names.results_file(tmp_path / "damaged").write_bytes(b"no HDF5")
    folder.claim(load([], environ={}), tmp_path / "none")
    assert not names.results_file(tmp_path / "none").exists()
    for name in ("one", "damaged"):
        with pytest.raises(HpcfedError, match="holds a run already"):
            folder.claim(load([], environ={}), tmp_path / name)


def test_an_overwritten_run_leaves_no_file_that_could_be_taken_for_the_new_runs(tmp_path: Path):
    old = [
        names.results_file(tmp_path),
        names.checkpoint_file(tmp_path, 2),
        names.model_file(names.models_folder(tmp_path), 0),
        names.model_file(names.adapted_folder(tmp_path), 0),
        names.probe_file(tmp_path),
        names.rank_log(tmp_path, 1),
        names.picture_file(tmp_path),
    ]
    for path in old:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    folder.claim(load(["--overwrite"], environ={}), tmp_path)
    assert [path for path in old if path.exists()] == []


def test_a_folder_on_each_nodes_own_disk_is_refused_on_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(folder, "PATIENCE", 0.0)
    look = folder.look
    monkeypatch.setattr(folder, "look", lambda run, world: look(tmp_path / "own disk", world))

    def refused(comm) -> str:
        with pytest.raises(HpcfedError) as error:
            enter(comm, tmp_path / "run")
        return str(error.value)

    messages = spmd(4, refused, nodes=2)
    assert (
        len(set(messages)) == 1
        and messages[0].startswith("rank 2: out: ")
        and "that all nodes share" in messages[0]
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]
