"""Rounds of many clients are stored as rows of those that took part, and read as [T, K]."""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.errors import CheckpointError, DamagedError
from hpcfed.storage.columns import ByClient, concat_columns, select_rounds, stack_rows, stored
from hpcfed.storage.results import LOST, Results, load

pytestmark = pytest.mark.quick
K = 2000


def row(*ids: int) -> dict[str, object]:
    """A round in which these clients took part."""
    n = np.array(ids, np.int64)
    return {
        "clients/id": n,
        "clients/accuracy": n / 10,
        "clients/epochs": np.ones(len(n)),
        "clients/up": n * 2,
        "clients/cohort": np.ones(len(n), bool),
        "rounds/seconds": float(len(n)),
    }


def full(rows: list[dict[str, object]]) -> dict[str, np.ndarray]:
    """These rounds as columns of all clients, by loops."""
    blank = {"accuracy": np.nan, "epochs": 0.0, "up": 0, "cohort": False}
    columns = {f"clients/{name}": np.full((len(rows), K), b) for name, b in blank.items()}
    for t, one in enumerate(rows):
        for name, column in columns.items():
            column[t, one["clients/id"]] = one[name]
    return columns | {"rounds/seconds": np.array([one["rounds/seconds"] for one in rows])}


ROWS = [row(3, 5), row(), row(0, 1, 1999), row(5)]


def write(folder: Path, rows: list[dict[str, object]], clients: int = K) -> Results:
    kinds = ["mlp"] * clients if clients <= 10_000 else ["mlp"]
    results = Results(folder, {"job": {"clients": clients}, "architectures": kinds}, {})
    for one in rows:
        results.append(one)
        results.finish()
    return results


def check_equal(columns, want):
    assert {*columns} == {*want}
    for name, column in want.items():
        assert columns[name].dtype == column.dtype
        assert np.array_equal(columns[name], column, equal_nan=column.dtype.kind == "f")


@pytest.mark.parametrize("finished", [False, True])
def test_rows_of_some_clients_are_read_as_columns_of_all(tmp_path, finished):
    results = write(tmp_path, ROWS)
    if finished:
        results.finish()
    record = load(tmp_path)
    check_equal(record.columns, full(ROWS))
    check_equal(results.record().columns, full(ROWS))
    assert stored(record.columns)["clients/rows"].tolist() == [2, 0, 3, 1]
    for t in range(4):
        check_equal(results.row(t + 1), {name: c[t] for name, c in full(ROWS).items()})


def test_stored_bytes_grow_with_rows_and_not_with_clients(tmp_path):
    sizes = {}
    for clients in (K, 9_999):
        (tmp_path / str(clients)).mkdir()
        results = write(tmp_path / str(clients), ROWS * 20, clients)
        results.header["architectures"] = []  # the header lists them once
        results.header["job"] = {"clients": clients}
        results.finish()
        sizes[clients] = results.path.stat().st_size
        nbytes = sum(c.nbytes for block in results._blocks for c in block.values())
        assert nbytes == sum(len(one["clients/id"]) for one in ROWS * 20) * 33 + len(ROWS * 20) * 16
    assert sizes[K] == sizes[9_999]


def test_a_resumed_run_continues_the_rows(tmp_path):
    write(tmp_path, ROWS)
    header = load(tmp_path).header
    again = Results.resume(tmp_path, 3, header)
    again.append(ROWS[0])
    again.finish()
    check_equal(load(tmp_path).columns, full([*ROWS[:3], ROWS[0]]))


def test_a_round_whose_record_is_lost_has_no_values(tmp_path):
    write(tmp_path, ROWS[:1])
    again = Results.resume(tmp_path, 2, load(tmp_path).header)
    again.append(ROWS[2])
    again.finish()
    columns = load(tmp_path).columns
    assert np.isnan(columns["clients/up"][1]).all() and np.isnan(columns["clients/cohort"][1]).all()
    assert columns["clients/up"][2, 1999] == 3998 and columns[LOST][1] == 1


def test_of_more_than_10_000_clients_readers_get_the_rows_themselves(tmp_path):
    write(tmp_path, ROWS, 20_000)
    columns = load(tmp_path).columns
    assert columns["clients/id"].shape == (4, 3) and np.isnan(columns["clients/id"][1]).all()
    assert columns["clients/id"][2].tolist() == [0, 1, 1999]


def test_rounds_can_be_selected_and_joined_again():
    block = stack_rows([{n: np.asarray(v) for n, v in one.items()} for one in ROWS])
    parts = [select_rounds(block, t, t + 1) for t in range(4)]
    again = concat_columns(parts)
    assert {n: c.tolist() for n, c in again.items()} == {n: c.tolist() for n, c in block.items()}
    assert parts[1]["clients/up"].shape == (0,)


def test_a_column_that_begins_later_is_nan_for_the_rows_before():
    late = {**ROWS[2], "clients/f1": np.array([0.1, 0.2, 0.3])}
    block = stack_rows([{n: np.asarray(v) for n, v in one.items()} for one in (ROWS[0], late)])
    column = ByClient(block, K)["clients/f1"]
    assert np.isnan(column[0]).all() and column[1, 1999] == 0.3


@pytest.mark.parametrize(
    "name, values",
    [
        ("clients/rows", [2, 0, 3, 2]),
        ("clients/rows", [2, 0, -3, 7]),
        ("clients/id", [3, 3, 0, 1, 1999, 5]),
        ("clients/id", [3, 5, 0, 1, K, 5]),
        ("clients/id", [3.0, 5.0, 0.0, 1.0, 2.0, 5.0]),
        ("clients/up", [1, 2, 3]),
    ],
)
def test_rows_that_do_not_fit_their_rounds_are_refused(tmp_path, name, values):
    results = write(tmp_path, ROWS)
    block = dict(results._columns())
    results._blocks, results._rows = [block | {name: np.array(values)}], []
    results._columns = lambda: results._blocks[0]
    results.finish()
    with pytest.raises(CheckpointError, match="clients/|rows of clients"):
        load(tmp_path)


def test_rounds_of_all_clients_and_of_some_are_no_run():
    block = stack_rows([{n: np.asarray(v) for n, v in ROWS[0].items()}])
    with pytest.raises(DamagedError, match="all clients"):
        concat_columns([block, {"clients/up": np.zeros((1, K))}])
