"""A GPU's memory over the host's over the disk, with copies on the CPU standing for those between
GPU and host.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from hpcfed.clients import client_state
from hpcfed.comm import Serial, codec
from hpcfed.core.errors import HpcfedError
from hpcfed.core.payload import nbytes
from hpcfed.engine.rounds import Rounds
from hpcfed.machine.transfer import locked
from hpcfed.storage.lru_store import LruStore
from hpcfed.storage.tiered_store import TieredStore
from tests.contract import toy

ONE = 40  # bytes of a value here


def value(k: int) -> Tensor:
    return torch.full((10,), float(k))


@pytest.fixture
def store(tmp_path):
    """Room for two values above and for two below."""
    below = LruStore(tmp_path / "spill", 2 * ONE, codec.encode, codec.decode, nbytes)
    tiered = TieredStore(below, 2 * ONE, Tensor.clone, Tensor.clone, nbytes)
    yield tiered
    tiered.close()


def filled(store: TieredStore, n: int = 6) -> TieredStore:
    for k in range(n):
        store.put(k, value(k))
        store.fit(keep=[])
    store.order(lambda: None).result()  # all that was ordered before is done
    return store


def test_values_spill_from_the_upper_to_the_lower_store_and_then_to_disk(store):
    filled(store)
    assert (
        sorted(store.in_memory) == [4, 5]
        and sorted(store.below.in_memory) == [2, 3]
        and store.below.away == {0, 1}
    )
    assert sorted(store) == list(range(6))


def test_every_value_is_restored_bit_for_bit_from_memory_and_disk(store):
    filled(store)
    for k in (0, 3, 5, 1, 4, 2):
        assert torch.equal(store.get(k), value(k))
        store.fit(keep=[k])
    store.prefetch(range(6))
    assert all(torch.equal(store.peek(k), value(k)) for k in range(6))


def test_a_value_that_is_replaced_while_it_lies_below_is_the_new_one(store):
    filled(store)
    store.put(0, value(70))
    store.put(2, value(72))
    for k in (1, 3, 4, 5):
        store.get(k)
    store.fit(keep=[])
    assert torch.equal(store.get(0), value(70)) and torch.equal(store.get(2), value(72))


def test_copies_from_a_gpu_count_as_their_page_locked_blocks(monkeypatch, tmp_path):
    """torch rounds each up to a power of two."""
    monkeypatch.setattr(
        client_state, "Transfer", lambda device: SimpleNamespace(down=None, up=None)
    )
    one = client_state.ClientState(
        torch.zeros(1025), {"moments": torch.zeros(3), "step": torch.zeros(())}
    )
    store = client_state.state_store(tmp_path, 100.0, torch.device("cuda", 1), 200.0)
    assert (store.limit, store.below.limit) == (200.0, 100.0)
    assert store.size(one) == 4100 + 12 + 4 and store.below.size(one) == 8192 + 16 + 4
    assert (
        client_state.state_store(tmp_path, 100.0, torch.device("cpu"), 200.0).size(one)
        == 4100 + 12 + 4
    )
    assert [locked(n) for n in (0, 1, 4096, 4097)] == [0, 1, 4096, 8192]


def test_the_upper_store_also_reports_a_disk_that_cannot_be_written(store):
    store.folder.write_text("a file where the folder should be")
    filled(store)
    with pytest.raises(HpcfedError, match="cannot be written"):
        store.get(0)
    store.folder.unlink()


def test_a_run_with_two_levels_has_the_bits_of_one_with_all_in_memory(tmp_path):
    flags = (
        "--models.mix",
        "mlp,cnn",
        "--local.keep_optimiser",
        "true",
        "--participation",
        "0.5",
        "--rounds",
        "5",
        "--out",
        str(tmp_path / "run"),
    )
    job, low = toy.job("local", *flags), []

    def layered() -> Rounds:
        going = toy.start(Serial(), job)
        store = going.fed.store
        below, copy = store.states, lambda state: state.map_tensors(Tensor.clone)
        below.limit = 1.0
        store.states = TieredStore(below, 1.0, copy, copy, below.size)
        return going

    going, rows = layered(), []
    while going.t < job.rounds:
        rows.append(going.step()[0])
        low.append((len(going.fed.store.states.away), len(going.fed.store.states.below.away)))
    assert toy.differences(toy.outcome(going, rows), toy.run(Serial(), job)) == []
    assert max(low)[0] > 2 and max(low)[1] > 0
    going.fed.store.states.close()
