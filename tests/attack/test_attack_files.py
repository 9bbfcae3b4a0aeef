"""Files that hpcfed itself wrote, and small text files: damaged, exchanged, or no files at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfed.clients import profiles
from hpcfed.core.errors import DataError
from hpcfed.data.partition_file import Partition
from hpcfed.storage import names, results
from tests.attack.claims import TINY, command, damaged, refused, run

COMMANDS = ("summary", "plot", "cite", "digest")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run of two rounds, with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("made") / "run"
    words = [*TINY, "--rounds", "2", "--out", str(folder)]
    words += ["--checkpoint.every", "1", "--checkpoint.keep", "2"]
    assert run(*words).status == 0
    for name in COMMANDS:  # each works, and has imported what it needs
        assert command(name, str(folder)).status == 0
    return folder


@pytest.fixture
def copy(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def versions(content: bytes, n: int, g: Random) -> Iterator[bytes]:
    """So many damaged versions of these bytes."""
    while n:
        if (version := damaged(content, g)) != content:
            n -= 1
            yield version


def test_every_command_refuses_a_damaged_result_file_and_resume_rewrites_it_without_copies(
    copy,
):
    path = names.results_file(copy)
    first, spare = (
        names.results_copy(names.parts_folder(names.checkpoint_file(copy, t))) for t in (1, 2)
    )
    first.unlink()
    for i, version in enumerate(versions(path.read_bytes(), 40, Random(1))):
        path.write_bytes(version)
        spare.write_bytes(version)
        refused(command(COMMANDS[i % 4], str(copy)), str(path), "run the job again")
    done = run("--resume", str(copy), "--rounds", "3", "--quiet")
    assert done.status == 0 and f"{path}: damaged" in done.err
    assert "the records of rounds 1 to 2 are lost" in done.err
    assert results.load(copy).rounds == 3


def test_resume_rewrites_a_damaged_result_file_from_its_copy(copy):
    path = names.results_file(copy)
    path.write_bytes(path.read_bytes()[:-1])
    done = run("--resume", str(copy), "--rounds", "3", "--quiet")
    assert (
        done.status == 0
        and f"{path}: damaged or missing; the run continues with the copy" in done.err
    )
    assert results.load(copy).rounds == 3


def test_a_damaged_checkpoint_is_never_resumed_from(copy):
    path = names.checkpoint_file(copy, 2)
    for version in versions(path.read_bytes(), 15, Random(2)):
        path.write_bytes(version)
        refused(run("--resume", str(path), "--rounds", "3", "--quiet"), str(path))


def test_files_in_each_others_place_are_refused(copy, tmp_path):
    results, saved = names.results_file(copy), names.checkpoint_file(copy, 2)
    refused(command("summary", str(saved)), "holds hpcfed-checkpoint, not hpcfed-results")
    refused(command("summary", str(names.partition_file(copy))), "holds hpcfed-partition, not")
    shutil.copy(results, saved)
    refused(run("--resume", str(saved)), "holds hpcfed-results, not hpcfed-checkpoint")
    with h5py.File(results, "w") as file:
        file["columns"] = np.zeros(3)
    for parts in (1, 2):
        names.results_copy(names.parts_folder(names.checkpoint_file(copy, parts))).unlink()
    refused(run("--resume", str(copy)), "holds hpcfed-results, not hpcfed-checkpoint")


PLACES = {  # what may stand where a file is wanted
    "pipe": (os.mkfifo, "a pipe, socket or device"),
    "folder": (os.mkdir, "Is a directory"),
    "loop": (lambda path: os.symlink(path.name, path), "Too many levels of symbolic links"),
    "device": (lambda path: os.symlink("/dev/zero", path), "a pipe, socket or device"),
    "missing": (lambda path: None, "No such file"),
    "empty": (Path.touch, ""),
}


@pytest.mark.parametrize("kind", PLACES)
def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path, kind):
    make, reason = PLACES[kind]
    for name in ("results.h5", "job.toml", "partition.h5", "clients.csv"):
        make(tmp_path / name)
    for name in COMMANDS:
        refused(
            command(name, str(tmp_path / "results.h5")),
            "results.h5",
            reason if kind != "folder" else "",
        )
    refused(run("--resume", str(tmp_path)), "results.h5", reason)
    if kind != "empty":
        refused(run(str(tmp_path / "job.toml")), "job.toml: cannot read the job file", reason)
    out = ["--out", str(tmp_path / "run")]
    refused(
        run(*TINY, *out, "--data.partition_file", str(tmp_path / "partition.h5")),
        "partition.h5",
        "",
    )
    devices = ["--system.distribution", "file", "--system.file", str(tmp_path / "clients.csv")]
    refused(run(*TINY, *out, *devices), "system.file", "clients.csv")
    assert not (tmp_path / "run").exists()


@contextmanager
def powerless() -> Iterator[None]:
    """Without the rights of root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_unreadable_and_unwritable_paths_are_refused(made, copy):
    copy.chmod(0)
    try:
        with powerless():
            for name in COMMANDS:
                refused(command(name, str(copy)), "cannot be read")
            refused(run("--resume", str(copy)), "cannot be read")
            refused(
                run(*TINY, "--out", str(copy / "below")),
                "out: cannot make the folder",
                "Permission denied",
            )
    finally:
        copy.chmod(0o700)


def test_a_picture_that_cannot_be_written_is_refused(made, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "file").touch()
    for out in ("pipe.png", "file/a.png", "a.gif", "a", "x" * 300 + ".png"):
        refused(command("plot", str(made), "-o", str(tmp_path / out)), out)
    for words in (["-o", "/"], ["-o", "/", "--format", "png"], ["-o", "", "--format", "png"]):
        refused(command("plot", str(made), *words), "is a folder, not a picture")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_times_beyond_all_measure_are_not_drawn(tmp_path):
    for name, value in (("latency", "1.7e308"), ("speed", "5e-324")):
        words = [*TINY, "--overwrite", "--out", str(tmp_path / "run"), f"--system.{name}", value]
        assert run(*words).status == 0
    assert command("summary", "--json", str(tmp_path / "run")).status == 0


LINES = st.lists(
    st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.just("9" * 5000)), max_size=6
)
CSV = st.lists(LINES.map(lambda line: ",".join(map(str, line))), max_size=5).map("\n".join)


@settings(max_examples=200)
@given(st.booleans(), CSV)
def test_any_profile_file_is_read_or_refused(tmp_path, headed, text):
    path = tmp_path / "clients.csv"
    heading = ",".join(profiles.HEADER) + "\n" if headed else ""
    path.write_bytes((heading + text).encode(errors="surrogatepass"))
    try:
        profile = profiles.read(path, 2)
    except DataError as error:
        assert "clients.csv" in str(error)
    else:
        assert {name: len(values) for name, values in profile.items()} == dict.fromkeys(
            profiles.COLUMNS, 2
        )


def parts(**changed: object) -> dict[str, object]:
    """The arrays of a partition file for two clients."""
    return {
        "train": np.arange(6),
        "train_sizes": [4, 2],
        "test": np.arange(4),
        "test_sizes": [2, 2],
        "public": np.array([9]),
    } | changed


HUGE = np.array([2**64 - 1, 1, 2, 3, 4, 5], np.uint64)  # as a signed number the last example
WRONG = {
    "wrapped": (parts(train=HUGE), "train: value 18446744073709551615 at index 0"),
    "negative": (parts(public=np.array([-1])), "public: value -1 at index 0"),
    "sizes_wrap": (
        parts(train_sizes=np.array([2**63 - 1, 2**63 - 1])),
        "train_sizes: value 9223372036854775807",
    ),
    "float": (parts(test=np.zeros(4)), "test: is not a row of whole numbers"),
    "square": (parts(train=np.zeros((2, 3), int)), "train: is not a row"),
    "twice": (
        parts(public=np.array([3])),
        "training example 3 is there twice, in client 0 and the public data",
    ),
    "nobody": (parts(train=np.zeros(0, int), train_sizes=np.zeros(0, int)), "0 clients"),
    "empty": (parts(public=h5py.Empty("i8")), "public: is not an array"),
    "text": (parts(train="all"), "train: is not a row"),
    "no_texts": (parts(train_sizes=np.zeros(0, "S3")), "0 clients"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_array_of_a_partition_file_is_named(tmp_path, name):
    arrays, message = WRONG[name]
    with h5py.File(tmp_path / "p.h5", "w") as file:
        for place, values in arrays.items():
            file[place] = values
    with pytest.raises(DataError) as error:
        Partition.load(tmp_path / "p.h5")
    assert message in str(error.value)
