"""benchmarks/archive.py: result files go into one archive per study and come back as they were."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

import archive  # noqa: E402
import rowfiles  # noqa: E402

pytestmark = pytest.mark.quick


@pytest.fixture
def study(tmp_path):
    """A folder with two result files, one of them in a folder of its own, and a table."""
    (tmp_path / "rates").mkdir()
    (tmp_path / "a.h5").write_bytes(b"a" * 1000)
    (tmp_path / "rates/b.h5").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "table.md").write_text("| a |")
    return tmp_path


def files(study):
    return {path.relative_to(study).as_posix(): path.read_bytes() for path in study.rglob("*.h5")}


def test_files_come_back_with_the_same_bytes(study):
    before = files(study)
    archive.pack(study)
    for path in study.rglob("*.h5"):
        path.unlink()
    archive.unpack(study)
    assert files(study) == before


def test_the_same_files_make_the_same_archive(study):
    archive.pack(study)
    one = (study / archive.ARCHIVE).read_bytes()
    (study / archive.ARCHIVE).unlink()
    (study / "a.h5").touch()
    archive.pack(study)
    assert (study / archive.ARCHIVE).read_bytes() == one


def test_a_run_that_was_removed_stays_away_until_another_archive_comes(study, tmp_path_factory):
    archive.pack(study)
    (study / "a.h5").unlink()
    archive.unpack(study)
    assert set(files(study)) == {"rates/b.h5"}
    other = tmp_path_factory.mktemp("other")
    (other / "a.h5").write_bytes(b"another run")
    archive.pack(other)
    (study / archive.ARCHIVE).write_bytes((other / archive.ARCHIVE).read_bytes())
    archive.unpack(study)
    assert files(study)["a.h5"] == b"another run"


def test_a_folder_without_runs_has_no_archive(study):
    archive.pack(study)
    for path in study.rglob("*.h5"):
        path.unlink()
    archive.pack(study)
    assert not (study / archive.ARCHIVE).exists()


def test_rows_come_back_and_the_same_rows_make_the_same_file(tmp_path):
    file = tmp_path / "results" / "rows.jsonl.xz"
    assert rowfiles.read(file) == []
    rows = [{"key": "a", "accuracy": 0.1}, {"key": "b", "failed": "\u00e9"}]
    rowfiles.write(file, rows)
    first = file.read_bytes()
    assert rowfiles.read(file) == rows
    rowfiles.write(file, rowfiles.read(file))
    assert file.read_bytes() == first and list(file.parent.iterdir()) == [file]


def test_all_that_is_tracked_stays_below_15_mb():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode or not tracked.stdout:
        pytest.skip("no checkout of git")
    paths = [ROOT / name for name in tracked.stdout.split("\0") if name]
    assert sum(path.lstat().st_size for path in paths if path.exists()) < 15e6
