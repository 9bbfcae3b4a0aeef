"""Many clients: those that do not fit in memory wait on disk, and those of a population are made
when used.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.comm import Serial, codec
from hpcfed.core.errors import HpcfedError
from hpcfed.core.payload import nbytes
from hpcfed.machine.error_messages import kind
from hpcfed.storage.lru_store import LruStore
from tests import saving
from tests.contract import toy
from tests.threads import spmd

FLAGS = (
    "--local.keep_optimiser",
    "true",
    "--local.optimiser",
    "adam",
    "--participation",
    "0.5",
    "--rounds",
    "6",
    "--models.mix",
    "mlp,cnn",
)
TINY = ("--run.resident", "1e-9")  # of a GiB: nothing but the client in use


@pytest.fixture
def store(tmp_path):
    lru = LruStore(tmp_path / "spill", 100, codec.encode, codec.decode, nbytes)
    yield lru
    lru.close()


def test_a_spilled_client_comes_back_bit_for_bit(store):
    odd = torch.tensor([0.0, -0.0, float("nan"), 1e-45, float("inf")])
    store.put(3, {"weights": odd, "memory": {"step": 7, "moments": (odd * 2).double()}})
    store.put(4, {"weights": torch.ones(40)})
    store.fit(keep=[])
    assert store.away == {3, 4} and not store.in_memory
    back = store.get(3)
    assert back["weights"].numpy().tobytes() == odd.numpy().tobytes()
    assert back["memory"]["moments"].dtype == torch.float64 and back["memory"]["step"] == 7


def test_the_least_recently_used_leave_first_and_those_in_use_stay(store):
    for k in range(4):
        store.put(k, torch.zeros(10))
    store.get(0)
    store.fit(keep=[1])
    assert sorted(store.in_memory) == [0, 1] and sorted(store) == [0, 1, 2, 3]


def test_prefetched_values_are_in_memory_and_peeking_moves_nothing(store):
    for k in range(5):
        store.put(k, torch.full((10,), float(k)))
    store.fit(keep=[])
    store.prefetch(range(5))
    assert store.peek(0).tolist() == [0.0] * 10 and 0 in store.away
    assert store.get(0).tolist() == [0.0] * 10 and 0 not in store.away


def test_a_disk_that_cannot_be_written_is_one_clear_message(store):
    store.folder.write_text("a file where the folder should be")
    store.put(0, torch.zeros(100))
    store.fit(keep=[])
    with pytest.raises(
        HpcfedError, match=r"spill/0.bin: clients that do not fit in run.resident cannot be written"
    ):
        store.get(0)
    store.folder.unlink()


def delete(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("harm", [delete, shorten])
def test_a_spilled_client_that_cannot_be_read_is_one_message_of_the_disk(store, harm):
    store.put(0, torch.zeros(100))
    store.fit(keep=[])
    store.peek(0)  # it is written
    harm(store.path(0))
    with pytest.raises(HpcfedError, match=r"spill/0.bin: clients .* cannot be read again") as error:
        store.get(0)
    # as an error of the machine: the run can be resumed, and no client's data are blamed
    assert error.value.again and kind(error.value) == ""


def test_files_go_when_the_run_ends(store):
    store.put(0, torch.zeros(100))
    store.fit(keep=[])
    assert store.get(0) is not None and store.folder.exists()
    store.close()
    assert not store.folder.exists()


def trained(tmp_path, name, *flags, comm=None, rounds=None, resume=None):
    """What a run came to, and how many of its clients were on disk at most."""
    away = []
    job = toy.job("local", *FLAGS, "--out", str(tmp_path / name), *flags)

    def watch(going):
        away.append(len(going.fed.store.states.away))

    return toy.run(comm or Serial(), job, rounds, resume, tmp_path / name, watch), max(away)


@pytest.mark.parametrize("ranks", [1, 2])
def test_bits_do_not_depend_on_the_memory_limit(tmp_path, ranks):
    want, none = trained(tmp_path, "all")
    runs = spmd(ranks, lambda comm: trained(tmp_path, "few", *TINY, comm=comm))
    assert all(toy.differences(got, want) == [] for got, _ in runs)
    assert none == 0 and max(away for _, away in runs) > 0


def test_a_run_with_clients_on_disk_is_saved_and_resumed_on_other_ranks_to_the_bit(tmp_path):
    want, path = trained(tmp_path, "whole")[0], tmp_path / "half"
    trained(tmp_path, "half", *TINY, rounds=3)
    for got, _ in spmd(2, lambda comm: trained(tmp_path, "rest", *TINY, comm=comm, resume=path)):
        assert (
            toy.differences(
                [got.weights, got.memory, got.scores], [want.weights, want.memory, want.scores]
            )
            == []
        )


def test_saving_reads_spilled_values_without_loading_them(tmp_path):
    job = toy.job("local", *FLAGS, *TINY, "--out", str(tmp_path / "run"))
    rounds = toy.start(Serial(), job)
    for _ in range(3):
        rounds.step()
    before = set(rounds.fed.store.states.away)
    saving.save(rounds, tmp_path / "run")
    assert before and before <= rounds.fed.store.states.away
    rounds.fed.store.states.close()


def test_a_client_that_was_never_in_a_cohort_costs_nothing():
    rounds = toy.start(Serial(), toy.job("local", "--participation", "0.2", "--models.mix", "mlp"))
    rounds.step()
    assert (
        len(list(rounds.fed.store)) == 2 and np.isfinite(rounds.evaluation.scores[:5, 0]).all()
    )  # though all are evaluated
