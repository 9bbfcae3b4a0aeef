"""Clients of one rank share modules, never weights."""

import numpy as np
import pytest
import torch

from hpcfed.clients.client import Client, Extended, Paired, Shard
from hpcfed.clients.store import ClientStore
from tests.contract import toy
from tests.on_device import Launches

SHAPE = (1, 8, 8)


@pytest.fixture
def clients() -> list[Client]:
    """Clients 0 and 2 with an MLP, 1 with a CNN; 4, 5 and 6 examples."""
    store = ClientStore(0, SHAPE, 4, 16, False, torch.device("cpu"))
    x, y = np.arange(20 * 64, dtype=np.float32).reshape(20, *SHAPE), np.arange(20) % 4
    shards = [
        Shard(x, y, np.arange(start, start + n), store.device)
        for start, n in ((0, 4), (4, 5), (9, 6))
    ]
    return [
        Client(k, a, shards[k], shards[k], store) for k, a in enumerate(("mlp", "fedhenn-1", "mlp"))
    ]


@pytest.mark.parametrize("architecture", ["mlp", "fedhenn-1", "cnn"])
def test_initial_weights_follow_from_the_seed_the_client_and_the_architecture_alone(architecture):
    """Not from the global generator, nor from what this rank has made before."""

    def store(seed: int) -> ClientStore:
        return ClientStore(seed, SHAPE, 4, 16, False, torch.device("cpu"))

    used = store(0)
    want = store(0).initial(architecture, 3).flat
    torch.rand(5)
    used.skeleton(architecture), used.initial(architecture, 1)
    before = torch.random.get_rng_state()
    assert torch.equal(used.initial(architecture, 3).flat, want)
    assert torch.equal(torch.random.get_rng_state(), before)
    others = used.initial(architecture, 4), store(1).initial(architecture, 3)
    assert not any(torch.equal(other.flat, want) for other in others)


def test_a_batch_is_the_rows_that_are_asked_for(clients):
    x, y = clients[1].train.batch(np.array([2, 0]))
    assert x[:, 0, 0, 0].tolist() == [6 * 64, 4 * 64] and y.tolist() == [2, 0] and clients[1].n == 5


def test_batches_gathered_on_a_device_equal_those_gathered_on_the_host(clients, monkeypatch):
    """The device's way, forced on the CPU."""
    whole_shard = clients[2].train
    soft = Paired(whole_shard, torch.arange(12.0).reshape(6, 2), with_labels=True)
    plan = [np.array([3, 0]), np.array([5]), np.zeros(0, dtype=np.int64)]
    for shard in (whole_shard, soft, Extended(whole_shard, clients[1].train)):
        host = list(shard.batches(plan))
        with monkeypatch.context() as patch:
            patch.setattr(Shard, "gathers_on_device", True)
            device = list(shard.batches(plan))
            again = shard.batch(plan[0])
        assert toy.differences(device, host) == [] == toy.differences(again, host[0])


def test_batches_on_a_device_follow_new_labels_and_belong_to_one_part(clients, monkeypatch):
    monkeypatch.setattr(Shard, "gathers_on_device", True)
    shard = clients[2].train
    want = shard.labels[:2].tolist()
    assert shard.batch(np.array([0, 1]))[1].tolist() == want
    assert shard.pick(np.array([4, 1])).batch(np.array([1]))[1].tolist() == [want[1]]
    shard.labels = shard.labels + 1
    assert shard.batch(np.array([0, 1]))[1].tolist() == [y + 1 for y in want]


def test_the_positions_of_a_client_s_batches_go_to_the_device_in_one_copy(clients, monkeypatch):
    monkeypatch.setattr(Shard, "gathers_on_device", True)
    copies, positions = [], Shard.positions
    monkeypatch.setattr(
        Shard, "positions", lambda shard, which: copies.append(which) or positions(shard, which)
    )
    monkeypatch.setattr(Shard, "targets", None)  # labels are gathered where they are
    assert len(list(clients[2].train.batches([np.array([k]) for k in range(6)]))) == 6
    assert len(copies) == 1


def test_a_batch_of_none_is_empty(clients):
    x, y = clients[0].train.batch(np.zeros(0, dtype=np.int64))
    assert x.shape == (0, *SHAPE) and y.shape == (0,)


def test_clients_of_one_architecture_share_the_module_but_no_weights(clients):
    first, second = clients[0], clients[2]
    assert first.model is second.model
    first.load({"head.bias": torch.full((4,), 1.0)})
    second.load({"head.bias": torch.full((4,), 2.0)})
    assert first.params()["head.bias"].tolist() == [1.0] * 4
    assert second.params()["head.bias"].tolist() == [2.0] * 4


def test_each_client_starts_from_its_own_weights_in_any_order_of_use(clients):
    alone = clients[2].params()
    other = ClientStore(0, SHAPE, 4, 16, False, torch.device("cpu"))
    for k in (2, 0, 2):
        clients[k].store = other
        start = clients[k].params()
        assert all(torch.equal(v, alone[name]) for name, v in start.items()) == (k == 2)


def test_copies_do_not_follow_the_model(clients):
    before = clients[0].params()
    clients[0].load({"head.bias": torch.full((4,), 5.0)})
    assert before["head.bias"].tolist() != [5.0] * 4


def test_a_borrowed_client_is_given_back_as_it_was(clients):
    before = clients[0].params()
    with clients[0].borrowed() as client:
        client.load({"head.bias": torch.full((4,), 5.0)})
        clients[2].load(
            {"head.bias": torch.full((4,), 6.0)}
        )  # the module serves another one meanwhile
    assert all(torch.equal(v, before[name]) for name, v in clients[0].params().items())
    assert clients[2].params()["head.bias"].tolist() == [6.0] * 4


def test_only_wanted_tensors_are_copied(clients):
    assert list(clients[1].params(lambda name: name.startswith("head."))) == [
        "head.weight",
        "head.bias",
    ]


def test_weights_can_be_taken_given_and_forgotten(clients):
    store, start = clients[0].store, clients[0].params()["head.bias"]
    assert store.flat(2) is None  # never used: it has none of its own
    clients[0].load({"head.bias": torch.full((4,), 5.0)})
    flat = store.flat(0)
    store.put(2, flat)
    assert clients[2].params()["head.bias"].tolist() == [5.0] * 4
    store.drop(0)
    assert torch.equal(clients[0].params()["head.bias"], start)
    assert (
        flat.is_contiguous() and store.flat(2).data_ptr() != store.skeleton("mlp").flat.data_ptr()
    )


def test_a_module_is_built_once_for_all_clients_of_an_architecture(clients):
    for client in clients * 2:
        assert client.model is clients[client.id].model
    assert sorted(clients[0].store.skeletons) == [("fedhenn-1", "clients"), ("mlp", "clients")]


def test_all_weights_are_copied_with_one_call_for_any_number_of_tensors(clients):
    client = clients[1]
    assert len(client.skeleton.layout.names) == 4
    with Launches() as out:
        params = client.params()
    with Launches() as back:
        client.load(params)
    assert (out.count, back.count) == (1, 1)
    before = client.skeleton.flat.clone()
    params["head.weight"].zero_()  # a copy
    assert torch.equal(client.skeleton.flat, before)
    assert list(client.params(lambda name: name == "head.weight")) == ["head.weight"]
