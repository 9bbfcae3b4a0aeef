"""The cores that the ranks of a node may use, counted from a made-up /sys."""

from pathlib import Path

import pytest

from hpcfed.machine import cores
from hpcfed.machine.cores import cores_of_node, physical_cores
from tests.threads import spmd

pytestmark = pytest.mark.quick


def system(folder: Path, siblings: list[str]) -> Path:
    """A folder as Linux's, of logical CPUs with these siblings."""
    for cpu, text in enumerate(siblings):
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("siblings", "cpus", "expected"),
    [
        (["0,2", "1,3", "0,2", "1,3"], range(4), [0, 1]),
        (["0-1", "0-1", "2-3", "2-3"], range(4), [0, 2]),
        (["0,2", "1,3", "0,2", "1,3"], [2], [0]),  # the other CPU of the core is not for this rank
        (["0", "1"], [0, 1], [0, 1]),
        (["?", "", "2"], [0, 1, 2], [0, 1, 2]),
    ],
)
def test_logical_cpus_of_one_core_count_once(
    tmp_path: Path, siblings: list[str], cpus: list[int], expected: list[int]
):
    assert physical_cores(cpus, system(tmp_path, siblings)) == expected


def test_without_a_description_of_the_system_each_logical_cpu_counts(tmp_path: Path):
    assert physical_cores([3, 0, 1], tmp_path / "absent") == [0, 1, 3]


@pytest.mark.parametrize(
    ("affinities", "expected"),
    [
        ([{0}, {1}, {2}], 3),  # bound to a core each
        ([{0, 1}, {0, 1}, {0, 1}], 2),  # a cpuset for all of them
        ([{0}, {0}, {0}], 1),
        ([{0}, {4}, {1, 5}], 2),  # two threads of one core
    ],
)
def test_cores_of_a_node_are_those_that_its_ranks_may_use_together(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    affinities: list[set[int]],
    expected: int,
):
    folder = system(tmp_path, [f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)])
    per_rank = iter(affinities)
    monkeypatch.setattr(cores, "logical_cpus", lambda: sorted(next(per_rank)))
    assert spmd(3, lambda comm: cores_of_node(comm, folder)) == [expected] * 3


def test_cores_of_other_nodes_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    per_rank = iter([[0], [1], [2], [3]])
    monkeypatch.setattr(cores, "logical_cpus", lambda: next(per_rank))
    assert spmd(4, lambda comm: cores_of_node(comm, tmp_path), nodes=2) == [2] * 4
