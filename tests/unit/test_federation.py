"""The door between clients and server: cohorts, stragglers, counted bytes, exact means, clients
that move.
"""

import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from hpcfed.comm import Comm, Serial
from hpcfed.core import rng
from hpcfed.core.errors import DivergedError
from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import nbytes, on_device
from hpcfed.core.user_code import OwnError
from hpcfed.engine import balance
from hpcfed.federation.federation import Federation
from hpcfed.federation.upload import Upload
from tests.contract import toy
from tests.threads import spmd


def federation(*flags: str, comm=None) -> Federation:
    return toy.start(
        comm or Serial(), toy.job("fedclassavg", "--models.mix", "mlp,fedhenn-1", *flags)
    ).fed


@pytest.mark.parametrize("rate, size", [("0.01", 1), ("0.5", 3), ("0.51", 4), ("1", 6)])
def test_a_cohort_is_the_rate_times_the_clients_rounded_up(rate: str, size: int):
    fed = federation("--participation", rate)
    for t in range(20):
        cohort = fed.sample(t)
        assert (
            len(cohort) == size and cohort == sorted(set(cohort)) and set(cohort) <= set(range(6))
        )


def test_a_tenth_of_thirty_clients_is_three_in_spite_of_rounding():
    assert (
        len(
            federation(
                "--clients", "30", "--data.train_limit", "60", "--participation", "0.1"
            ).sample(0)
        )
        == 3
    )


def test_every_client_is_drawn_about_equally_often():
    fed = federation("--participation", "0.5")
    counts = np.bincount(np.concatenate([fed.sample(t) for t in range(400)]), minlength=6)
    assert (abs(counts - 200) < 50).all()  # five standard deviations


def test_clients_without_probability_are_never_drawn():
    fed = federation("--participation", "0.3")
    p = np.array([0, 0.5, 0, 0.5, 0, 0])
    assert all(fed.sample(t, p) == [1, 3] for t in range(5))


def test_the_docstring_names_all_that_is_public_and_nothing_else():
    fed = federation()
    named = set(re.findall(r"`(\w+)`", Federation.__doc__)) - {
        "Placement",
        "Exchange",
        "Participants",
        "Upload",
    }
    assert named == {name for name in dir(fed) if not name.startswith("_")}


def test_each_piece_of_a_users_servers_work_draws_anew():
    fed = toy.start(Serial(), toy.job("tests.contract.cheats:Jitters", "--models.mix", "mlp")).fed

    def draw() -> float:
        return fed.on_root(lambda: torch.rand(()).item())

    values = [draw()]  # in `init`
    fed.begin()
    values += [draw(), draw(), fed.spread([0], lambda _: torch.rand(()).item())[0]]
    with fed.stay_with_clients():  # in `finish`
        fed.begin()
        values.append(draw())
    assert len(set(values)) == 5


@pytest.mark.parametrize("channels", [3, 1])
def test_what_passes_between_client_and_server_is_in_row_major_order(channels: int):
    """As it is after a move to another rank or a resumption, where kernels may give other bits.

    A dimension of size 1 may have another stride in a tensor that is contiguous.
    """
    fed = federation()
    filters = torch.rand(4, channels, 5, 5).to(memory_format=torch.channels_last)
    strides = torch.empty(4, channels, 5, 5).stride()
    assert filters.stride() != strides
    received = fed.down(fed.clients[0], Params(w=filters))["w"]
    sent = dict(fed.run([1], lambda client: Upload(Mean.of(Params(w=filters)))))[1]
    remembered = federation()
    remembered.run([2], lambda client: client.memory.update(w=[filters]))
    (term,) = sent.terms
    for value in (received, term.value["w"], remembered.clients[2].memory["w"][0]):
        assert value.stride() == strides and torch.equal(value, filters)


def test_stragglers_are_a_share_of_the_cohort_and_do_at_least_one_epoch():
    fed, amounts = federation("--local.stragglers", "0.5", "--local.epochs", "3"), set()
    for t in range(30):
        slow = fed.participants.draws.stragglers(t, [0, 2, 3, 5])
        assert len(slow) == 2 and set(slow) <= {0, 2, 3, 5}
        amounts |= set(slow.values())
    assert amounts == {1, 2, 3}


def test_with_one_epoch_a_straggler_does_it():
    draws = federation("--local.stragglers", "1").participants.draws
    assert set(draws.stragglers(0, [1, 2]).values()) == {1}


def test_stragglers_are_left_out_unless_the_method_keeps_them():
    fed = federation("--local.stragglers", "0.5")
    cohort = fed.participants.begin(0, [0, 1, 2, 3], True)
    left = fed.participants.begin(0, [0, 1, 2, 3], False)
    assert cohort == [0, 1, 2, 3] and len(left) == 2
    assert not set(left) & set(fed.participants.partial)


def test_bytes_are_counted_by_client_and_direction():
    fed = federation()
    fed.participants.begin(0, [0, 1], False)
    fed.down(fed.clients[1], Params(a=torch.zeros(5)))
    sent = {
        0: Upload(torch.zeros(3, dtype=torch.float64)),
        1: Upload(
            list=[np.zeros(2, np.int64), "text", 7], mean=Mean.of(Params(a=torch.zeros(2)), 3.0)
        ),
    }
    received = fed.run([0, 1, 2], lambda client: sent.get(client.id))
    fed.gather({k: received[k] for k in (0,)})  # counts nothing
    assert [(fed.tallies[k].down, fed.tallies[k].up) for k in (0, 1, 2)] == [
        (0, 24),
        (20, 16 + 8),
        (0, 0),
    ]


@dataclass(frozen=True)
class Model:
    """A state of a method's own."""

    weights: Params


def test_a_download_whose_bytes_cannot_be_counted_is_refused():
    fed = federation()
    for value in (Model(Params(a=torch.zeros(5))), {"model": [Model(Params(a=torch.zeros(5)))]}):
        with pytest.raises(OwnError, match="fed.down gets a Model, whose tensors would be neither"):
            fed.down(fed.clients[1], value)
    assert fed.tallies[1].down == 0
    fed.down(fed.clients[1], {"a": (torch.zeros(2), [np.zeros(2), 3, None, "x"]), "b": 1.5})
    assert fed.tallies[1].down == 8 + 16


def test_only_tensors_and_arrays_have_bytes():
    assert nbytes({"a": torch.zeros(2), "b": (np.zeros(3), [1.5, None, "x"])}) == 8 + 24


def test_tensors_in_nested_dicts_go_to_the_device_and_types_stay():
    copy = on_device({"a": Params(b=torch.zeros(2)), "n": 3}, torch.device("cpu"))
    assert type(copy["a"]) is Params and copy["n"] == 3


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_mean_is_over_all_ranks_and_keeps_the_old_value_without_reports(ranks: int):
    def mean(comm, cohort):
        fed = federation(comm=comm)
        fed.participants.begin(0, cohort, False)
        parts = (
            (c.id, Mean.of(Params(a=torch.full((2,), float(c.id))), float(c.id)))
            for c in fed.mine(cohort)
        )
        return fed.mean(parts, keep=Params(a=torch.tensor([9.0, 9.0])))["a"].tolist()

    assert spmd(ranks, lambda comm: mean(comm, [1, 3])) == [[2.5, 2.5]] * ranks
    assert spmd(ranks, lambda comm: mean(comm, [])) == [[9.0, 9.0]] * ranks


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_upload_that_is_not_finite_is_refused_with_its_client_and_tensor(bad: float):
    fed = federation()
    fed.participants.begin(4, [1], False)
    with pytest.raises(
        DivergedError, match=r"client 1 \(fedhenn-1\): its a is nan or infinite after round 5"
    ):
        fed.run([1], lambda client: Upload(Mean.of(Params(a=torch.tensor([0.0, bad])))))


def test_server_side_work_is_done_once_and_sent_to_all_ranks():
    done = []
    values = spmd(
        3,
        lambda comm: federation(comm=comm).on_root(
            lambda: done.append(comm.rank) or {"a": torch.ones(2)}
        ),
    )
    assert done == [0] and [v["a"].tolist() for v in values] == [[1.0, 1.0]] * 3


def test_a_client_that_moves_takes_weights_and_memory_along():
    def move(comm):
        rounds = toy.start(comm, toy.job("local", "--models.mix", "mlp"))
        fed, k = rounds.fed, 5
        src = rounds.fed.placement.ranks[k]
        if comm.rank == src:
            fed.clients[k].load({"head.bias": torch.arange(4.0)})
            fed.clients[k].memory = {"optimiser": {"step": torch.tensor(3.0)}}
        fed.placement.move(k, src, 1 - src)
        if comm.rank == src:
            return k in fed.clients, fed.store.flat(k), list(fed.clients) == sorted(fed.clients)
        client = fed.clients[k]
        return (
            client.params()["head.bias"].tolist(),
            client.memory["optimiser"]["step"].item(),
            sorted(fed.clients),
        )

    left, arrived = sorted(spmd(2, move), key=lambda arrival: not isinstance(arrival[0], bool))
    assert left == (False, None, True)
    assert arrived[:2] == ([0.0, 1.0, 2.0, 3.0], 3.0) and 5 in arrived[2]


def test_clients_without_state_move_without_a_message_and_others_with_all_their_state(
    monkeypatch,
):
    messages = []

    def move(comm):
        fed = toy.start(comm, toy.job("local", "--models.mix", "mlp")).fed
        if 5 in fed.clients:
            fed.clients[5].load({"head.bias": torch.arange(4.0)})
        full = fed.placement.move
        monkeypatch.setattr(
            fed.placement, "move", lambda k, *ranks: messages.append(k) or full(k, *ranks)
        )
        balance.move(fed, {k: 1 - fed.placement.ranks[k] for k in (2, 4, 5)})
        bias = fed.store.layout("mlp").slots["head.bias"]
        mine = 5 in fed.store and fed.store.flat(5)[bias].tolist()
        return [k for k in (2, 4, 5) if k in fed.clients], mine

    (a, first), (b, second) = spmd(2, move)
    assert (
        sorted(a + b) == [2, 4, 5]
        and messages == [5, 5]
        and sorted([first, second], key=bool) == [False, [0, 1, 2, 3]]
    )


def test_the_pooled_client_holds_all_training_examples_once():
    pooled = federation().pooled()
    assert pooled.id == 6 and pooled.n == len(set(pooled.train.rows.tolist())) == sum(toy.SIZES)


def test_server_work_is_spread_over_the_ranks_to_the_same_results():
    def on_rank(comm: Comm) -> tuple[dict[str, torch.Tensor], list[str]]:
        fed, done = toy.start(comm, toy.job("fedavg", "--models.mix", "mlp")).fed, []

        def work(item: str) -> torch.Tensor:
            done.append(item)
            return rng.torch_stream(0, "spread", item).initial_seed() * torch.ones(2).double()

        return fed.spread(["c", "a", "b", "d"], work), done

    (want, _), *_ = spmd(1, on_rank)
    assert list(want) == ["c", "a", "b", "d"]
    ranks = spmd(3, on_rank)
    assert [done for _, done in ranks] == [["c", "d"], ["a"], ["b"]]
    assert all(
        toy.differences(state, want) == [] and list(state) == list(want) for state, _ in ranks
    )


def test_an_item_of_server_work_comes_once():
    fed = toy.start(Serial(), toy.job("fedavg", "--models.mix", "mlp")).fed
    with pytest.raises(ValueError, match="come twice: \\[1, 1\\]"):
        fed.spread([1, 1], lambda item: item)
