"""HDF5 crashes over some damaged files; hpcfed does not: they are first read in a process of its
own.
"""

import subprocess
from pathlib import Path
from random import Random

import pytest

from hpcfed.core.errors import DataError
from hpcfed.data import files, user_arrays
from tests import forked, limits
from tests.attack.claims import damaged
from tests.attack.test_attack_data import hdf5, jpegs, text
from tests.mpirun import environment

READ = """
import sys
from pathlib import Path
from hpcfed.data import files, user_arrays
from hpcfed.core.errors import DataError
user_arrays.START = 1
for name in sys.argv[1:]:
    try:
        files.read(Path(name))
        print("read")
    except DataError as error:
        print("refused")
"""
KINDS = {
    "plain": hdf5,
    "chunked": lambda path: hdf5(
        path, chunks=(4, 8, 8), compression="gzip", shuffle=True, fletcher32=True
    ),
    "latest": lambda path: hdf5(path, libver="latest", chunks=(4, 8, 8)),
    "jpegs": jpegs,
    "text": text,
}
# kind of file, and the accident: HDF5 ends the process, and does not come back
CRASHES = [("chunked", 209), ("plain", 17)]


def test_files_that_crash_hdf5_are_refused(tmp_path):
    originals = {kind: make(tmp_path / f"{kind}.h5").read_bytes() for kind, make in KINDS.items()}
    paths = [tmp_path / f"{kind}-{accident}.h5" for kind, accident in CRASHES]
    for path, (kind, accident) in zip(paths, CRASHES, strict=True):
        path.write_bytes(damaged(originals[kind], Random(accident)))
    command = [forked.python(), "-c", READ, *map(str, paths)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment({}), timeout=limits.COMMAND
    )
    assert (done.returncode, len(done.stdout.split())) == (0, len(paths)), done.stderr


@pytest.fixture
def trial(tmp_path, monkeypatch) -> Path:
    """The program that reads a file first, to be written by the test."""
    program = tmp_path / "trial.py"
    monkeypatch.setattr(user_arrays.hdf5_check, "__file__", str(program))
    return program


def test_a_crash_and_an_endless_read_are_reported_in_words(tmp_path, trial, monkeypatch):
    path = hdf5(tmp_path / "data.h5")
    trial.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(
        DataError,
        match=r"data\.h5: cannot be read: HDF5 crashes over it \(SIGSEGV\); make or copy it",
    ):
        files.read(path)
    monkeypatch.setattr(user_arrays, "START", 1)
    trial.write_text("import signal; signal.pause()")
    with pytest.raises(DataError, match="HDF5 does not come to its end within 1 s"):
        files.read(path)
    trial.write_text("import sys; sys.exit('no room')")
    with pytest.raises(DataError, match="cannot be read: no room"):
        files.read(path)
