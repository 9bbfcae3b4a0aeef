"""Values in HDF5 trees, and files that are complete or absent."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcfed
from hpcfed.core.errors import CheckpointError, DamagedError
from hpcfed.core.params import Params
from hpcfed.storage import tree
from hpcfed.storage.atomic import VERSIONS, open_file, replace_file
from hpcfed.storage.checksum import BLOCK, CHUNK

REPOSITORY = Path(hpcfed.__file__).parents[1]


def back(item: Any) -> Any:
    """The item after a round trip through a file in memory."""
    with h5py.File.in_memory() as file:
        tree.write(file, "a/b", item)
        return tree.read(file, "a/b")


def equal(a: Any, b: Any) -> bool:
    """Same types, keys in the same order, dtypes, shapes and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, np.ndarray | torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    return repr(a) == repr(b)


def bits(array: np.ndarray | torch.Tensor) -> bytes:
    if isinstance(array, torch.Tensor):
        array = (array.float() if array.dtype == torch.bfloat16 else array).numpy()
    return array.tobytes()


TENSORS = [
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", TENSORS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)], ids=str)
def test_a_tensor_comes_back_with_dtype_shape_and_bits(dtype, shape):
    tensor = (torch.arange(6) - 2).to(dtype)[: int(np.prod(shape))].reshape(shape)
    assert equal(back(tensor), tensor)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "i8", "u1", "?", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
def test_an_array_comes_back_as_an_array(dtype, shape):
    array = np.arange(6).astype(dtype)[: int(np.prod(shape))].reshape(shape)
    assert equal(back(array), array)


def test_odd_floats_keep_their_bits():
    odd = [0.0, -0.0, float("nan"), float("inf"), 1e-45, 3.4e38]
    assert equal(back(torch.tensor(odd)), torch.tensor(odd))
    assert equal(back(odd), odd)


def test_tensors_are_saved_without_gradient_and_from_any_layout():
    weight = torch.arange(6.0).reshape(2, 3).requires_grad_()
    assert equal(back(weight.T), weight.detach().T.contiguous())


def test_a_nested_state_comes_back_as_it_was():
    state = {
        "global": Params({"head.weight": torch.ones(2, 3), "body.0.weight": torch.zeros(1)}),
        3: {"memory": (np.arange(3), [], (), {}), "none": None, "yes": True, "big": 2**100},
        "3": ["text", "", "ä/\0", 1, 1.5, [torch.tensor(1)]],
        -1: Params(),
    }
    assert equal(back(state), state)


def test_numpy_numbers_come_back_as_python_numbers():
    assert equal(back({np.int64(3): np.float32(0.5)}), {3: 0.5})


KEYS = st.text(st.characters(exclude_categories=["Cs"])) | st.integers()


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(st.dictionaries(KEYS, st.integers(), max_size=5))
def test_any_text_and_any_integer_is_a_key(item):
    assert equal(back(item), item)


@pytest.mark.parametrize(
    "item", [{1, 2}, object(), np.array(["a"]), {True: 1}, {1.5: 1}, [{"x": b"bytes"}]]
)
def test_other_types_are_refused(item):
    with pytest.raises(CheckpointError, match="cannot save"):
        back(item)


def test_a_file_has_the_bytes_that_h5pys_groups_and_datasets_would_give_it():
    weight, mask = torch.arange(6.0).reshape(2, 3), np.array([True, False])
    with h5py.File.in_memory() as file, h5py.File.in_memory() as expected:
        tree.write(file, "clients/3", {"weight": weight.T, "mask": mask, "steps": [7]})
        group = expected.create_group("clients/3", track_order=True)
        group.attrs["kind"] = "dict"
        group["weight"] = weight.T.numpy()
        group.create_dataset("mask", data=mask).attrs["kind"] = "array"
        steps = group.create_group("steps", track_order=True)
        steps.attrs["kind"] = "list"
        steps.create_dataset("0", data=np.bytes_(b"7")).attrs["kind"] = "json"
        for opened in (file, expected):
            opened.flush()
        assert file.id.get_file_image() == expected.id.get_file_image()


def save(path: Path, value: int) -> None:
    with replace_file(path, "test") as file:
        tree.write(file, "value", value)


def value_of(path: Path) -> int:
    with open_file(path, "test") as file:
        return tree.read(file, "value")


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    save(tmp_path / "a.h5", 1)
    with pytest.raises(ZeroDivisionError), replace_file(tmp_path / "a.h5", "test") as file:
        file["half"] = 1 / 0
    assert value_of(tmp_path / "a.h5") == 1
    assert os.listdir(tmp_path) == ["a.h5"]


def test_leftovers_of_killed_writers_are_removed_at_the_next_write(tmp_path):
    (tmp_path / ".a.h5.node7-123.tmp").write_bytes(b"half a file")
    (tmp_path / ".b.h5.node7-123.tmp").write_bytes(b"of another rank, which may be writing it")
    (tmp_path / "notes.tmp").write_text("not ours")
    save(tmp_path / "a.h5", 1)
    assert sorted(os.listdir(tmp_path)) == [".b.h5.node7-123.tmp", "a.h5", "notes.tmp"]


def test_a_file_that_is_replaced_stays_readable_as_it_was(tmp_path):
    save(tmp_path / "a.h5", 1)
    with open_file(tmp_path / "a.h5", "test") as file:
        save(tmp_path / "a.h5", 2)
        assert tree.read(file, "value") == 1
    assert value_of(tmp_path / "a.h5") == 2


def test_files_that_are_open_at_once_are_read_apart(tmp_path):
    save(tmp_path / "a.h5", 1)
    with open_file(tmp_path / "a.h5", "test") as file:
        save(tmp_path / "a.h5", 2)
        with open_file(tmp_path / "a.h5", "test") as newer:
            assert (tree.read(file, "value"), tree.read(newer, "value")) == (1, 2)
        assert tree.read(file, "value") == 1


def test_damage_in_a_large_file_is_found_when_its_stretch_is_read_and_at_once_when_all_is_checked(
    tmp_path,
):
    path, values = tmp_path / "a.h5", np.arange(CHUNK // 2)
    with replace_file(path, "test") as file:
        file["first"], file["last"] = values, values
    body = bytearray(path.read_bytes())
    body[-CHUNK] ^= 1
    path.write_bytes(body)
    with open_file(path, "test", verify_all=False) as file:
        assert (file["first"][...] == values).all()
        with pytest.raises(DamagedError, match="a.h5: damaged"):
            file["last"][...]
    with pytest.raises(DamagedError, match="a.h5: damaged"), open_file(path, "test"):
        pass


def test_plain_hdf5_tools_read_a_sealed_file(tmp_path):
    save(tmp_path / "a.h5", 1)
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file.attrs["format"], file.attrs["format_version"], file.userblock_size) == (
            "test",
            1,
            BLOCK,
        )


def test_another_format_and_another_version_are_refused(tmp_path, monkeypatch):
    save(tmp_path / "a.h5", 1)
    with (
        pytest.raises(CheckpointError, match="holds test, not other"),
        open_file(tmp_path / "a.h5", "other"),
    ):
        pass
    monkeypatch.setitem(VERSIONS, "test", 3)
    with pytest.raises(
        CheckpointError,
        match="version 1, but this hpcfed reads version 3; use the hpcfed that",
    ):
        value_of(tmp_path / "a.h5")
    save(tmp_path / "a.h5", 1)
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match="version 3, but this hpcfed reads version 1; use a newer hpcfed"
    ):
        value_of(tmp_path / "a.h5")


def test_a_foreign_file_is_refused(tmp_path):
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["value"] = 1
    with pytest.raises(CheckpointError, match="not a file of hpcfed"):
        value_of(tmp_path / "foreign.h5")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError, match="file/a.h5: cannot be written: .*choose another run folder"
    ):
        save(tmp_path / "file" / "a.h5", 1)


FULL = """
import resource, sys, pathlib, numpy as np
from hpcfed.core.errors import CheckpointError, DamagedError
from hpcfed.storage.atomic import replace_file
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    with replace_file(pathlib.Path(sys.argv[1]), "test") as file:
        for i in range(int(sys.argv[2])):
            file[f"part{i}"] = np.zeros(int(sys.argv[3]))
except CheckpointError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("parts", "size"), [(1, 100_000), (40, 1000)], ids=["one large", "many small"]
)
def test_a_full_disk_is_one_message_and_damages_no_file(tmp_path, parts, size):
    save(tmp_path / "a.h5", 1)
    command = [sys.executable, "-c", FULL, str(tmp_path / "a.h5"), str(parts), str(size)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.strerror(errno.EFBIG) in done.stdout and "a.h5: cannot be written" in done.stdout
    assert value_of(tmp_path / "a.h5") == 1
    assert os.listdir(tmp_path) == ["a.h5"]
