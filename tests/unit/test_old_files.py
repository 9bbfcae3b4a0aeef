"""Every version's files open, and a run goes on from them with every bit that they hold."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcfed
from hpcfed.comm import Serial
from hpcfed.config.load import again, load
from hpcfed.engine import folder, run
from hpcfed.engine.fault_tolerance import save_restore
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.setup import federation, world
from hpcfed.storage import names, results
from hpcfed.storage.atomic import VERSIONS
from hpcfed.storage.digest import digest
from tests.data import make

RUNS = sorted(path.parent for path in make.HERE.glob(f"*/*/{make.DIGEST}"))
each_run = pytest.mark.parametrize(
    "old", RUNS, ids=[f"{path.parent.name}-{path.name}" for path in RUNS]
)


def recorded(old: Path) -> str:
    return (old / make.DIGEST).read_text().strip()


def job(folder: Path, *flags: str) -> Any:
    """The job of the run in a folder, to be resumed."""
    own = results.load(folder).header["job"]
    kept = {
        name: value
        for name, value in own.items()
        if name not in ("out", "resume", "overwrite", "dry_run")
    }
    return load(["--resume", str(folder), *flags], lambda _: kept, environ={})


def test_there_are_files_of_the_versions_that_are_written():
    checkpoint, record = (VERSIONS[form][0] for form in (names.CHECKPOINT, names.RESULTS))
    assert {path.parent.name for path in RUNS} >= {f"checkpoint-{checkpoint}-results-{record}"}


@each_run
def test_a_file_of_every_version_opens_with_the_bits_that_were_written(old):
    assert results.load(old).rounds == make.ROUNDS
    assert digest(old) == recorded(old)


@each_run
def test_what_a_run_takes_up_from_an_old_checkpoint_is_all_that_it_holds(old, tmp_path):
    """Taken up and saved again, in today's format, it has the same digest."""
    given, comm = job(old), Serial()
    rounds = Rounds(federation(given, comm, world(given, comm)))
    save_restore.restore(rounds, old)
    save_restore.save(rounds, tmp_path)
    shutil.copy(names.results_file(old), tmp_path)
    assert digest(tmp_path) == recorded(old)


@each_run
def test_a_run_goes_on_from_an_old_folder(old, tmp_path):
    folder = Path(shutil.copytree(old, tmp_path / "run"))
    assert run.run(job(folder, "--rounds", str(make.ROUNDS + 1), "--quiet"), Serial()) == run.DONE
    before, after = results.load(old), results.load(folder)
    assert after.rounds == make.ROUNDS + 1
    for name, column in before.columns.items():
        if not name.startswith("ranks/"):  # two ranks before, one now
            np.testing.assert_array_equal(after.column(name)[: make.ROUNDS], column)


@each_run
def test_an_old_run_without_results_goes_on_from_its_checkpoint(old, tmp_path, monkeypatch, capfd):
    copy = Path(shutil.copytree(old, tmp_path / "run"))
    for path in copy.rglob("results.h5"):
        path.unlink()
    given = load(
        ["--resume", str(copy), "--rounds", str(make.ROUNDS + 1), "--quiet"],
        folder.read_job,
        environ={},
    )
    assert run.run(given, Serial()) == run.DONE
    assert f"the records of rounds 1 to {make.ROUNDS} are lost" in capfd.readouterr().err
    assert results.load(copy).rounds == make.ROUNDS + 1


@each_run
def test_a_model_comes_out_of_an_old_run(old):
    model = hpcfed.load_model(old, client=1)
    assert model.about.rounds == make.ROUNDS and model.about.shape == (1, 16, 16)


def test_a_run_from_before_a_field_goes_on_as_it_began():
    """FedProto's term was a sum over d before it could be a mean; a new job has the mean."""
    old = {"algorithm": {"name": "fedproto", "lam": 0.5}}
    on = load(["--resume", "old"], lambda _: old, environ={})
    assert on.algorithm.reduction == "sum" and on.usual()["algorithm"]["reduction"] == "sum"
    assert again(old, "old").algorithm.reduction == "sum"
    assert load(["--algorithm.name", "fedproto"], environ={}).algorithm.reduction == "mean"
