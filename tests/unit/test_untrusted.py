"""Sealed files that anybody may have made: refused with one message before anything is read, run or
obeyed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hpcfed
from hpcfed import cli
from hpcfed.config.load import again, load
from hpcfed.core import user_code
from hpcfed.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    format_error,
    plain,
    printable,
)
from hpcfed.core.safe_read import DamagedError, convert_unfit_errors, parse_json
from hpcfed.data import files, user_arrays
from hpcfed.data.hdf5_check import control_groups
from hpcfed.data.partition_file import Partition
from hpcfed.storage import names, record, tree, untrusted
from hpcfed.storage import sweep as sweeps
from hpcfed.storage.atomic import replace_file
from hpcfed.storage.checkpoint import Reader
from hpcfed.storage.checksum import BLOCK, identity
from hpcfed.storage.columns import concat_columns
from hpcfed.storage.header import check_header
from hpcfed.storage.results import Results
from tests import records

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import crafted
from mutations import reseal

MARKS = "\x1b[31m\n\u202e"


def crafted_run(folder: Path, change) -> Path:
    """A run whose results `change(file)` was made to before they were sealed."""
    results = records.run(folder)
    loaded = record.load(folder)
    with replace_file(names.results_file(folder), names.RESULTS) as file:
        results._fill(file, dict(loaded.columns))
        change(file)
    return folder


def put(name: str, make):
    """What replaces an item of a file. make(file, name)."""

    def change(file: h5py.File) -> None:
        del file[name]
        make(file, name)

    return change


def header(text: bytes):
    return put("header", lambda file, name: file.create_dataset(name, data=np.bytes_(text)))


def field(place: str, value: object):
    """A header with another value at that place."""

    def make(file: h5py.File) -> None:
        decoded = json.loads(file["header"][()])
        *above, last = place.split(".")
        table = decoded
        for key in above:
            table = table[key]
        table[last] = value
        header(json.dumps(decoded).encode())(file)

    return make


def virtual(file: h5py.File, name: str) -> None:
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    file.create_virtual_dataset(name, layout)


SECRET, SECONDS = "secret.txt", "columns/rounds/seconds"
HOSTILE = {
    "no JSON": (header(b"no json"), "no JSON text"),
    "deep": (header(b"[" * 100_000), "nested deeper|no JSON"),
    "deep but whole": (header(b"[" * 100 + b"]" * 100), "nested deeper than 32"),
    "list": (header(b"[1]"), "header: all of it"),
    "digits": (header(b'{"job": ' + b"9" * 5000 + b"}"), "no JSON text"),
    "negative": (field("job.rounds", -1), "header: job.rounds"),
    "not a number": (field("job.rounds", float("nan")), "header: job.rounds"),
    "huge": (field("job.clients", 2**40), "header: job.clients"),
    "names": (field("architectures", [1, None]), "header: architectures.0"),
    "clients": (field("job.clients", 5), "4 architectures of 5 clients"),
    "label": (field("job.data.label", ["a"]), "header: job.data.label"),
    "models": (field("job.models", {"mix": [["mlp"]]}), "header: job.models.mix.0"),
    "no text": (field("classes", ["\ud800", "b"]), "classes.0: '.ud800' is not Unicode text"),
    "rounds": (lambda file: file.attrs.modify("rounds", 2**40), "but 1099511627776 rounds"),
    "many rounds": (lambda file: file.attrs.modify("rounds", -1), "which is not a count"),
    "no rounds": (lambda file: file.attrs.pop("rounds"), "None, which is not a count"),
    "version": (
        lambda file: file.attrs.create("format_version", [1, 2]),
        "neither a number nor text",
    ),
    "no columns": (lambda file: file.pop("columns"), "there is no 'columns'"),
    "width": (
        put("columns/clients/up", lambda f, n: f.create_dataset(n, data=np.ones((3, 9)))),
        "have the shapes",
    ),
    "kind": (put(SECONDS, lambda f, n: f.create_dataset(n, data=["a"] * 3)), "has the type"),
    "declared": (
        put(SECONDS, lambda f, n: f.create_dataset(n, (2**43,), "f8")),
        "declare more than the file",
    ),
    "gzip": (
        put(
            SECONDS,
            lambda f, n: f.create_dataset(n, data=np.zeros(3), chunks=(3,), compression="gzip"),
        ),
        "is compressed",
    ),
    "soft link": (
        put(SECONDS, lambda f, n: f.__setitem__(n, h5py.SoftLink("/header"))),
        "is a link",
    ),
    "external link": (
        put(SECONDS, lambda f, n: f.__setitem__(n, h5py.ExternalLink("other.h5", "/x"))),
        "is a link",
    ),
    "loop": (put(SECONDS, lambda f, n: f.__setitem__(n, f["columns"])), "under several names"),
    "elsewhere": (
        put(SECONDS, lambda f, n: f.create_dataset(n, (3,), "f8", external=[(SECRET, 0, 24)])),
        "in another file, which is not read",
    ),
    "virtual": (put(SECONDS, virtual), "is put together from other files"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_results_are_refused_with_one_message_by_all_that_read_them(
    tmp_path, monkeypatch, capsys, case
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / SECRET).write_bytes(b"secret" * 100)
    change, what = HOSTILE[case]
    run = crafted_run(tmp_path / "run", change)
    with pytest.raises(CheckpointError, match=what):
        record.load(run)
    for command in ("summary", "cite", "digest"):
        assert cli.main([command, str(run)]) == 2
        assert capsys.readouterr().err.count("hpcfed: ") == 1
    assert cli.main(["status", str(run)]) == 0 and "damaged" in capsys.readouterr().out


def test_a_pipe_is_refused_at_once_in_place_of_any_file(tmp_path):
    records.run(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for ask in (identity, lambda path: sweeps.read(path.parent), hpcfed.load, Partition.load):
        link = names.sweep_file(tmp_path)
        link.unlink(missing_ok=True)
        link.symlink_to(pipe)
        with pytest.raises((OSError, CheckpointError, DataError)):
            ask(pipe)
    index = names.checkpoint_file(tmp_path, 1)
    part = names.part_file(names.parts_folder(index), 0)
    part.parent.mkdir(parents=True)
    os.mkfifo(part)
    index = checkpoint(index, {"round-000001/rank-0000.h5": "0" * 64})
    with Reader(index) as source, pytest.raises(DamagedError, match="pipe"):
        source.get("state")


def checkpoint(index: Path, parts: dict[str, str], rounds: int = 1) -> Path:
    """An index of these parts, the state in the first of them."""
    with replace_file(index, names.CHECKPOINT) as file:
        file.attrs["rounds"] = rounds
        tree.write_json(file, "header", {"job": {}})
        tree.write_json(file, "names", ["state"])
        tree.write_json(file, "parts", parts)
        file.create_group("items")["state"] = h5py.ExternalLink(next(iter(parts)), "/items/state")
    return index


@pytest.mark.parametrize("part", ["../../other/rank-0000.h5", "/etc/x", "round-000001/../a.h5"])
def test_an_index_names_parts_beside_it_alone(tmp_path, part):
    with pytest.raises(DamagedError, match="parts"):
        Reader(checkpoint(names.checkpoint_file(tmp_path, 1), {part: "0" * 64}))


def test_a_checkpoint_of_another_round_than_its_name_says_is_refused(tmp_path):
    """A resume fills in all rounds that its results lack: of 2**53 it would never end."""
    index, part = names.checkpoint_file(tmp_path, 1), {"round-000001/rank-0000.h5": "0" * 64}
    for rounds in (0, 2, 2**53):
        with pytest.raises(DamagedError, match=f"round-000001.h5: is of round {rounds}, not"):
            Reader(checkpoint(index, part, rounds))
    Reader(checkpoint(index.with_name("copy.h5"), part, 2)).close()
    with pytest.raises(DamagedError, match="holds 3 rounds, but the checkpoint says that 9007199"):
        Results.resume(records.run(tmp_path).path.parent, 2**53, records.header(4, 2, 3))


def test_a_checkpoint_that_does_not_say_its_job_is_refused(tmp_path):
    index = checkpoint(names.checkpoint_file(tmp_path, 1), {"round-000001/rank-0000.h5": "0" * 64})
    with h5py.File(index, "r+") as file:
        put("header", lambda f, name: f.create_dataset(name, data=np.bytes_(b"{}")))(file)
        block = index.read_bytes()[:BLOCK]
    with open(index, "r+b") as raw:
        raw.write(block)
    reseal(index)
    with Reader(index) as source, pytest.raises(DamagedError, match="does not say 'job'"):
        source.header["job"]


@pytest.mark.parametrize("settings", [[1], "x", {"rounds": -1}, {"data": {"name": []}}])
def test_the_job_in_a_checkpoint_is_a_job(settings):
    with pytest.raises(DamagedError, match="header: settings"):
        check_header({"job": {}, "settings": settings})


def test_items_that_a_run_does_not_save_are_damage_of_their_file_and_a_lack_of_memory_is_not():
    for error in (KeyError("stale"), AttributeError("to"), RuntimeError("size"), ValueError("x")):
        message = f"a.h5: holds .*{type(error).__name__}"
        with pytest.raises(DamagedError, match=message), convert_unfit_errors(Path("a.h5")):
            raise error
    with pytest.raises(torch.OutOfMemoryError), convert_unfit_errors(Path("a.h5")):
        raise torch.OutOfMemoryError("full")


def test_an_item_that_a_users_code_rejects_is_reported_with_the_line_of_that_code(
    tmp_path, monkeypatch
):
    (tmp_path / "takes.py").write_text("def take(tree):\n    return tree['model']\n")
    monkeypatch.syspath_prepend(tmp_path)
    take = user_code.load("algorithm.name", "takes:take", "module:Class")
    with (
        pytest.raises(DamagedError, match=r"KeyError: 'model', in .*takes.py, line 2, take\)$"),
        convert_unfit_errors(Path("a.h5")),
    ):
        take({})


def test_files_of_a_run_can_be_read_or_the_run_is_refused_before_its_first_round(tmp_path):
    for place, value in (("classes", ["\ud800"]), ("algorithm", "x" * 100_001)):
        with pytest.raises(ConfigError, match=f"could not be read: header: {place}"):
            Results(tmp_path, records.header(4, 2, 3) | {place: value}, {})
    header = records.header(4, 2, 3)
    header["job"]["out"] = "runs/\udcff"  # a folder may have any bytes in its name
    Results(tmp_path, header, {}).finish()
    assert record.load(tmp_path).header["job"]["out"] == "runs/\udcff"


def test_a_page_and_a_table_of_a_folder_with_a_name_that_is_not_unicode_are_written(tmp_path):
    run = records.run(tmp_path / "run\udcff").path.parent
    for words in (["report", run, "-o", "a.html"], ["table", run, "-o", "a.csv"]):
        out = tmp_path / words[-1]
        assert cli.main([*map(str, words[:-1]), str(out)]) == 0
        assert out.read_text(encoding="utf-8")


@pytest.mark.parametrize("value", [[1, None], ["\ud800"], "\ud800"])
def test_a_field_that_no_job_file_can_hold_is_named_by_export(tmp_path, capsys, value):
    run = crafted_run(tmp_path / "run", field("job.other", {"field": value}))
    assert cli.main(["export", str(run)]) == 2
    assert "other.field: " in capsys.readouterr().err


def test_groups_in_a_circle_and_objects_of_many_names_end():
    with h5py.File.in_memory() as file:
        tree.write(file, "a", {"b": [1, 2]})
        file["a/b/2"] = file["a"]
        for name in "cd":
            tree.write(file, name, {"x": np.ones(3)})
        file["c/y"] = file["c/x"]
        for name in "ac":
            with pytest.raises(DamagedError, match="several names"):
                tree.read(file, name)
            with pytest.raises(DamagedError, match="several names"):
                list(tree.leaves(file, name))
        assert list(tree.read(file, "d")["x"]) == [1, 1, 1]


def test_types_that_are_the_same_in_numpy_are_read_as_each_is_stored():
    enum, integers = h5py.enum_dtype({"a": 1, "b": 2}, "i4"), h5py.vlen_dtype("i4")
    row = np.empty((), integers)
    row[()] = np.arange(3, dtype="i4")
    with h5py.File.in_memory() as file:
        file.attrs["text"], file.attrs["ascii"] = "ä", np.bytes_(b"a")
        file.attrs.create("integers", row, dtype=integers)
        file["enum"], file["plain"] = np.array([1, 2], enum), np.array([3, 4], "i4")
        for _ in range(2):
            assert untrusted.attribute(file.id, "text") == "ä"
            assert untrusted.attribute(file.id, "ascii") == b"a"
            assert list(untrusted.attribute(file.id, "integers")) == [0, 1, 2]
            for name, values in {"enum": [1, 2], "plain": [3, 4]}.items():
                assert list(untrusted.array(untrusted.child(file.id, name))) == values


def test_arrays_and_attributes_of_other_types_are_refused_with_their_place():
    types = ["c8", "(3,)f4", [("a", "i4"), ("b", h5py.string_dtype())], "V7", h5py.ref_dtype]
    with h5py.File.in_memory() as file:
        for i, dtype in enumerate(types):
            node = file.create_dataset(str(i), (2,), dtype)
            node.attrs["sizes"] = [1, 2]
            with pytest.raises(DamagedError, match=f"^/{i}: has the type "):
                untrusted.array(node.id)
            with pytest.raises(DamagedError, match=f"^/{i}: its attribute 'sizes' is neither"):
                untrusted.attribute(node.id, "sizes")


def test_a_file_that_lacks_a_field_says_which():
    with pytest.raises(DamagedError, match="a.json: does not say 'b'"):
        parse_json('{"a": 1}', "a.json")["b"]


def test_gaps_of_a_column_take_no_more_memory_than_its_numbers_explain():
    tall, wide = {"clients/x": np.ones((10**5, 1))}, {"clients/x": np.ones((1, 10**5))}
    with pytest.raises(DamagedError, match="with the gaps between them"):
        concat_columns([tall, wide])


USERS = {
    "elsewhere": lambda f: f.create_dataset("x", (4, 1, 2, 2), "u1", external=[(SECRET, 0, 16)]),
    "soft": lambda f: f.__setitem__("x", h5py.SoftLink("/train/y")),
    "external": lambda f: f.__setitem__("x", h5py.ExternalLink("other.h5", "/x")),
    "declared": lambda f: f.create_dataset("x", (2**24, 1, 2, 2), "u1", compression="gzip"),
    "filter": lambda f: f.create_dataset("x", data=np.ones((4, 1, 2, 2)), scaleoffset=2),
}


@pytest.mark.parametrize("case", USERS)
def test_users_files_are_read_from_themselves_alone(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    (tmp_path / SECRET).write_bytes(b"secret" * 100)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        group = file.create_group("train")
        group["y"] = np.arange(4) % 2
        USERS[case](group)
    with pytest.raises(DataError, match="not read|is a link|more than a file"):
        files.read(tmp_path / "data.h5")


def test_gzip_and_lzf_are_read_in_users_files(tmp_path):
    for how in ("gzip", "lzf"):
        with h5py.File(tmp_path / "data.h5", "w") as file:
            for part in ("train", "test"):
                x = np.zeros((40, 1, 8, 8), np.uint8)
                file.create_dataset(f"{part}/x", data=x, compression=how, shuffle=True)
                file[f"{part}/y"] = np.arange(40) % 2
        assert files.read(tmp_path / "data.h5").train.x.shape == (40, 1, 8, 8)


@pytest.fixture
def evil(tmp_path, monkeypatch) -> str:
    """A module whose import leaves a mark, and what a job calls its method."""
    (tmp_path / "evil_module.py").write_text(
        "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
        "from hpcfed.algorithms.global_model.fedavg import FedAvg\nclass X(FedAvg): pass\n"
        "def tiny(shape, d): raise SystemExit\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "evil_module:X"
    sys.modules.pop("evil_module", None)


def test_resume_imports_a_method_only_if_the_user_names_it(tmp_path, evil):
    job = {"algorithm": {"name": evil}, "models": {"mix": ["mlp"]}}
    words, mark = ["--resume", str(tmp_path)], tmp_path / "evil_module.ran"
    with pytest.raises(ConfigError, match=f"--algorithm.name {evil}"):
        load(words, lambda path: job, environ={})
    with pytest.raises(ConfigError, match="--own"):
        again(job, "run")
    assert not mark.exists()
    (tmp_path / "job.toml").write_text(f'[algorithm]\nname = "{evil}"\n')
    for arguments in ([*words, "--algorithm.name", evil], [str(tmp_path / "job.toml"), *words]):
        assert load(arguments, lambda path: job, environ={}).algorithm.name == evil
    assert mark.exists() and again(job, "run", importable=[evil]).algorithm.name == evil


def test_resume_imports_a_model_only_if_the_user_names_it(tmp_path, evil):
    tiny = "evil_module:tiny"
    job = {"algorithm": {"name": "fedavg"}, "models": {"mix": [tiny]}}
    with pytest.raises(ConfigError, match=f"names {tiny}"):
        load(["--resume", str(tmp_path)], lambda path: job, environ={})
    assert not (tmp_path / "evil_module.ran").exists()
    mine = load(["--resume", str(tmp_path), "--models.mix", tiny], lambda path: job, environ={})
    assert mine.models.mix == (tiny,)


@pytest.mark.parametrize("name", ["evil_module:tiny", "mlp+evil_module:tiny", "subprocess:Popen"])
def test_a_saved_model_imports_only_modules_that_the_user_names(tmp_path, evil, name):
    about = {
        "architecture": name, "shape": [1, 8, 8], "classes": ["a"], "d": 8, "relu_head": False,
        "vocabulary": 0, "mean": [0.0], "std": [1.0], "client": 0, "rounds": 1, "counted": "",
        "kind": "logits", "more": {}, "job": {}, "task": {"name": "classification"},
        "encoder": {}, "name": "", "before_final": False, "after_final": False, "own": {},
    }  # fmt: skip
    attributes = {key: json.dumps(value) for key, value in about.items()}
    path = tmp_path / "client.safetensors"
    metadata = {"format": "hpcfed-model", "version": "1", **attributes}
    save_file({"x": torch.zeros(1)}, path, metadata=metadata)
    with pytest.raises(ConfigError, match="only if you name it yourself"):
        hpcfed.load_model(path)
    assert not (tmp_path / "evil_module.ran").exists()


def test_results_that_name_a_module_are_read_without_it(tmp_path, evil, capsys):
    run = crafted_run(tmp_path / "run", field("job.algorithm.name", evil))
    assert hpcfed.load(run).header["job"]["algorithm"]["name"] == evil
    for command in ("summary", "status", "plot", "cite"):
        assert cli.main([command, str(run)]) == 0
    assert not (tmp_path / "evil_module.ran").exists()


def test_control_characters_are_printed_as_escapes():
    assert printable(f"a{MARKS}b") == "a\\x1b[31m\\n\\u202eb"
    assert plain(f"a\tb\n{MARKS}") == "a\tb\n\\x1b[31m\n\\u202e"
    assert plain(f"x{MARKS}\ny", [MARKS]) == "x\\x1b[31m\\n\\u202e\ny"
    assert format_error(f"{MARKS}: gone", [MARKS]) == "\\x1b[31m\\n\\u202e: gone"
    assert printable("ü漢 ±") == "ü漢 ±"


@pytest.mark.parametrize("command", ["summary", "status", "table", "cite", "watch"])
def test_names_of_folders_and_labels_are_printed_in_one_line(tmp_path, capsys, command):
    run = crafted_run(tmp_path / f"run{MARKS}", field("job.algorithm.name", f"mine{MARKS}"))
    other = records.run(tmp_path / "plain").path.parent
    answers = []
    for folder in (run, other):
        assert cli.main([command, str(folder)]) == 0
        answers.append(capsys.readouterr().out.split("\n"))
    assert [line for line in answers[0] if not line.isprintable()] == []
    assert len(answers[0]) == len(answers[1])
    if command == "watch":  # it waits for a run that is not there yet
        return
    assert cli.main([command, f"{run}?"]) == 2
    assert capsys.readouterr().err.split("\n")[0].isprintable()


def test_names_in_a_sweep_are_folders_beside_it(tmp_path):
    text = {"format": "hpcfed-sweep", "version": 1, "words": [], "directory": "", "ranks": 1}
    for name in ("..", "../other", "a/b", ""):
        runs = [{"name": name, "words": [], "job": {}}]
        names.sweep_file(tmp_path).write_text(
            json.dumps(text | {"launcher": "", "job": {}, "runs": runs})
        )
        with pytest.raises(CheckpointError, match=r"sweep\.json"):
            sweeps.read(tmp_path)


@pytest.mark.parametrize(
    "name", ["data.name", "data.label", "data.partition", "algorithm.name", "rounds", "models.mix"]
)
@pytest.mark.parametrize("value", [[1, [2]], {"a": 1}, None, "\ud800"])
def test_a_field_of_a_sweeps_job_has_its_type(tmp_path, capsys, name, value):
    job = {"algorithm.name": "local", "data.name": "digits", "rounds": 1, name: value}
    runs = [{"name": "a", "words": [], "job": job}]
    text = {"format": "hpcfed-sweep", "version": 1, "words": [], "directory": "", "ranks": 1}
    names.sweep_file(tmp_path).write_text(
        json.dumps(text | {"launcher": "", "job": {}, "runs": runs})
    )
    assert cli.main(["table", str(tmp_path)]) == 2
    assert f"sweep.json: not as `hpcfed sweep` writes it: {name}" in capsys.readouterr().err


def test_a_sweep_started_in_a_folder_with_a_name_that_is_not_unicode_is_read(tmp_path):
    member = sweeps.Member("a", ["--system.file", "\udcff.csv"], {"rounds": 1})
    sweep = sweeps.Sweep(tmp_path, ["\udcff.toml"], "/home/\udcff", 1, "", (member,))
    sweeps.write(sweep)
    assert sweeps.read(tmp_path) == sweep


def test_mutated_files_of_every_kind_are_refused_or_read(tmp_path, monkeypatch):
    monkeypatch.setenv("CRAFTED_PLACE", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(crafted, "RARE", dict.fromkeys(crafted.RARE, 10**6))
    crafted.made(tmp_path)
    for kind in crafted.READERS:
        for number in (1, 2):
            faults, _ = crafted.play(kind, number, 0, tmp_path)
            assert faults == []
    shutil.rmtree(tmp_path / "s")


def test_a_file_that_has_passed_is_tried_again_only_when_it_has_changed(tmp_path, monkeypatch):
    path, tried, run = tmp_path / "data.h5", [], subprocess.run
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(100)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: tried.append(path) or run(*a, **k))
    for _ in range(3):
        with user_arrays.hdf5(path) as file:
            assert file["x"][-1] == 99
    assert len(tried) == 1
    path.write_bytes(path.read_bytes()[:100])
    for _ in range(2):  # what has failed is not a file that has passed
        with pytest.raises(OSError, match="truncated"), user_arrays.hdf5(path):
            pass
    assert len(tried) == 3


@pytest.mark.parametrize(
    "lines, limits",
    [
        ("0::/slurm/job_7/step_0\n", {"slurm/job_7/memory.max": "4096", "memory.max": "max"}),
        (
            "5:cpu,cpuacct:/job_7\n4:memory:/job_7/step_0\n0::/\n",
            {
                "memory/job_7/memory.limit_in_bytes": "4096",
                "cpu/job_7/memory.limit_in_bytes": "5",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_the_memory_of_a_batch_job_is_that_of_its_control_groups(lines, limits, tmp_path):
    (tmp_path / "self").write_text(lines)
    for name, value in limits.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(value)
    assert list(control_groups(tmp_path / "self", tmp_path / "groups")) == [4096]


def test_a_system_without_control_groups_has_no_such_limit(tmp_path):
    assert list(control_groups(tmp_path / "none", tmp_path)) == []
