"""Paths from users' hands."""

import os
from pathlib import Path

import pytest

from hpcfed.core.errors import ConfigError
from hpcfed.core.paths import output, unique_names
from hpcfed.storage.names import place_of


def paths(*names: str) -> list[Path]:
    return list(map(Path, names))


def test_names_have_as_much_of_a_path_as_tells_it_from_the_others():
    assert unique_names(paths("/x/a", "/x/b", "/y/b", "/y/c")) == ["a", "x/b", "y/b", "c"]
    assert unique_names(paths("/x/a/run", "/y/a/run", "/run")) == ["x/a/run", "y/a/run", "/run"]


def test_equal_paths_have_equal_names_and_a_part_of_another_path_its_whole():
    assert unique_names(paths("/x/a", "/x/a", "/y/b")) == ["a", "a", "b"]
    assert unique_names(paths("a", "b/a")) == ["a", "b/a"]
    assert unique_names([]) == []


def test_a_run_is_named_by_its_folder_or_by_a_result_file_among_others(tmp_path):
    found = [place_of(tmp_path / name) for name in ("run-0.1/results.h5", "fedavg.h5")]
    assert found == [tmp_path / "run-0.1", tmp_path / "fedavg"]


def test_what_a_user_asks_for_is_written_to_files_alone_and_says_why_not(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "a pipe"), ("absent/table", "No such file")):
        said = rf"{name}: cannot write the table: {why}.*; choose another place with -o"
        with pytest.raises(ConfigError, match=said), output(tmp_path / name, "the table"):
            (tmp_path / name).write_text("")
