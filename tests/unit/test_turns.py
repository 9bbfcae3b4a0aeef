"""Turns: what is undone, what a client that fails leaves behind, and how that is told."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcfed.algorithms.base import RoundBased
from hpcfed.comm import Serial
from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError, DataError, DivergedError
from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import Tally
from hpcfed.engine import evaluation
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.replay_log import WHY, Entry, Turn
from hpcfed.federation.upload import Upload
from hpcfed.machine import error_messages
from hpcfed.machine.heartbeat import Stopped
from tests import saving
from tests.contract import toy
from tests.threads import spmd

DROP = ("--run.on_client_fault", "drop")


def started(*flags: str, comm=None, method: str = "local") -> Rounds:
    return toy.start(
        comm or Serial(), toy.job(method, "--models.mix", "mlp", "--participation", "1", *flags)
    )


def failing(rounds: Rounds, error: Exception, *victims: int) -> Rounds:
    """The turns of these clients end in the error, when their models have changed."""
    fed, stream = rounds.fed, rounds.fed.stream

    def working(cohort, work, together=None, task=0, arguments=()):
        def broken(client):
            value = work(client, *arguments)
            if client.id in victims:
                raise error
            return value

        return stream(cohort, broken, None, task)

    fed.stream = working
    return rounds


class Everyone(RoundBased):
    """All clients train in each round, whoever is in its cohort, as FedMD's and others' begin."""

    def round(self, fed, state, cohort, t):
        def work(client):
            self.receive(client, state)
            self.train(fed, client, state, t)

        fed.run(range(fed.K), work)
        return state


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_client_that_has_left_the_round_has_no_turn_when_the_round_is_repeated(ranks):
    def lost(comm):
        rounds = started(*DROP, comm=comm, method=f"{__name__}:Everyone")
        return failing(rounds, DivergedError("x"), 2).step()[0]["clients/lost"].nonzero()[0]

    every = [lost(Serial())] if ranks == 1 else spmd(ranks, lost)
    assert [ids.tolist() for ids in every] == [[2]] * ranks


def test_a_rank_that_is_stopped_while_it_scores_an_attack_stops_the_others(monkeypatch):
    score_on = evaluation.score_on

    def interrupted(fed, client, predict, test):
        if fed.comm.rank == 1:
            raise Stopped
        return score_on(fed, client, predict, test)

    def stopped(comm):
        flags = ("--attack.by", "backdoor", "--attack.target", "0", "--attack.clients", "0")
        rounds = started(*flags, comm=comm, method="fedper")
        with pytest.raises(Stopped):
            rounds.step()
        return rounds.t

    monkeypatch.setattr(evaluation, "score_on", interrupted)
    assert spmd(2, stopped, timeout=30) == [0, 0]


def test_undo_restores_the_state_of_clients_and_removes_new_state():
    rounds = started()
    store, clients = rounds.fed.store, rounds.fed.clients
    clients[0].memory["a"] = 1
    before = store.flat(0), store.flat(1)
    with store.undo_log.set_recording():
        for k in (0, 1):
            clients[k].model.head.bias.data += 1
            clients[k].memory["a"] = 2
    store.undo_log.undo()
    assert clients[0].memory == {"a": 1} and [*store] == [0]
    assert toy.differences((store.flat(0), store.flat(1)), before) == []


def test_a_completed_turn_returns_its_result_and_is_not_repeated():
    fed, done = started().fed, []
    with fed.store.undo_log.set_recording():
        for _ in range(2):
            fed.replay.begin()
            received = fed.run(
                [0, 2], lambda client: done.append(client.id) or Upload(torch.tensor(client.n))
            )
    assert ({k: int(n) for k, n in received.items()}, done) == (
        {0: toy.SIZES[0], 2: toy.SIZES[2]},
        [0, 2],
    )


def test_work_outside_of_turns_makes_the_next_turn_repeated():
    fed, done = started().fed, []
    with fed.store.undo_log.set_recording():
        for _ in range(2):
            fed.replay.begin()
            fed.clients[0].params()
            fed.run([0, 2], lambda client: done.append(client.id))
    assert done == [0, 2, 0]


def test_recalling_a_clients_memory_keeps_its_next_turn_in_the_log():
    fed, done = started().fed, []
    fed.clients[0].memory["received"] = 5
    with fed.store.undo_log.set_recording():
        for _ in range(2):
            fed.replay.begin()
            assert (fed.clients[0].recall("received"), fed.clients[1].recall("received")) == (
                5,
                None,
            )
            fed.run([0, 1], lambda client: done.append(client.id))
    assert done == [0, 1] and [*fed.store] == [0]


def test_an_entry_travels_with_its_client():
    def moved(comm):
        fed = started(comm=comm).fed
        k, src = 4, fed.placement.ranks[4]
        with fed.store.undo_log.set_recording():
            fed.run(
                [k],
                lambda client: Upload(
                    Mean.of(Params(a=torch.ones(2)), 3.0, {"a": (np.arange(2),)})
                ),
            )
        fed.placement.move(k, src, 1 - src)
        (part,) = fed.replay.turns(k)[0].value.value.terms if k in fed.clients else [None]
        return part and (part.value["a"].tolist(), part.weight, part.at["a"][0].tolist())

    assert [1.0, 1.0] in [message and message[0] for message in spmd(2, moved)]
    entry = Entry(
        [Turn(None, Tally(up=3), [4]), Turn([1.5], None, [4, 7])], (0.5, 1.0), {2: ("data", "why")}
    )
    assert Entry.decode(entry.encode()) == entry


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DivergedError("rank 0 of 1: client 2 (mlp): its loss is nan"), "diverged"),
        (OSError("Input/output error"), "data"),
        (DataError("row 3: no image"), "data"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "memory"),
        (MemoryError(), "memory"),
    ],
)
def test_a_client_that_fails_keeps_its_model_and_the_row_says_why(
    error: Exception, kind: str, capsys, monkeypatch
):
    monkeypatch.setattr(user_code, "roots", set())  # the error is none of the user's own code
    rounds = started(*DROP)
    rounds.step()
    before = rounds.fed.store.flat(2).clone()
    row, _ = failing(rounds, error, 2).step()
    assert torch.equal(rounds.fed.store.flat(2), before)
    assert row["clients/fault"].tolist() == [0, 0, WHY.index(kind), 0, 0, 0]
    assert row["clients/lost"].tolist() == [False, False, True, False, False, False]
    rounds.step()
    assert (
        capsys.readouterr().err.count("rank 0 of 1: client 2 (mlp)") == 1
    )  # though it has failed twice


def test_an_upload_that_is_not_finite_is_a_failure_too():
    rounds = started(*DROP, method="fedavg")
    stream, nan = rounds.fed.stream, float("nan")

    def broken(cohort, work, together=None, job=0, arguments=()):
        def spoilt(client):
            factor = nan if client.id == 4 else 1
            return Upload(Mean.of(work(client, *arguments).value.terms[0].value * factor))

        return stream(cohort, spoilt)

    rounds.fed.stream = broken
    assert rounds.step()[0]["clients/fault"].tolist() == [0, 0, 0, 0, 1, 0]


def test_a_round_that_all_clients_leave_changes_nothing_and_is_said(capsys):
    rounds = failing(started(*DROP, method="fedavg"), DivergedError("nan"), *range(6))
    before = rounds.state.clone()
    row, _ = rounds.step()
    assert toy.differences(rounds.state, before) == []
    assert row["clients/lost"].all() and not row["clients/up"].any() and rounds.t == 1
    assert "round 1: all clients that took part have failed" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["fedasync", "fedbuff", "fedcompass", "swift"])
def test_a_round_in_virtual_time_ends_though_each_job_fails(method: str, capsys, tmp_path):
    job = toy.job(method, "--models.mix", "mlp", *DROP)

    def run(comm, resume=None):
        """A round in which all jobs fail, and a second one in which none does."""
        rounds = toy.start(comm, job)
        work = rounds.fed.run
        if resume is None:

            def diverge(client):
                raise DivergedError("nan")

            rounds.fed.run = lambda ks, _, **more: work(ks, diverge, **more)
            before = rounds.state
            row = rounds.step()[0]
            assert toy.differences(rounds.state, before) == [] and rounds.t == 1
            assert not row["clients/reports"].any() and not row["clients/up"].any()
            assert row["clients/lost"].any() and row["clients/down"].any()
            assert (row["clients/fault"] > 0).tolist() == (row["clients/lost"] > 0).tolist()
            rounds.fed.run = work
            saving.save(rounds, tmp_path / str(comm.size))
        else:
            restore(rounds, resume)
        return toy.outcome(rounds, [rounds.step()[0]])

    want = run(Serial())
    assert "round 1: all clients that took part have failed" in capsys.readouterr().err
    assert want.column("reports").any() and not want.column("fault").any()
    for got in (*spmd(3, run), run(Serial(), tmp_path / "3")):
        assert toy.differences(got, want) == []


def test_without_drop_the_run_ends_and_the_message_names_client_and_batch():
    rounds = failing(started(), MemoryError(), 2)
    with pytest.raises(
        error_messages.MemoryFault, match=r"client 2 \(mlp\): out of memory at local.batch = 16"
    ):
        rounds.step()


class Careless(RoundBased):
    """Its clients write to a folder that is not there."""

    def local(self, fed, client, state, t):
        with open("/nowhere/notes.txt", "a"):
            return super().local(fed, client, state, t)


def test_a_file_that_the_users_code_cannot_open_is_a_mistake_and_no_failure_of_a_client():
    rounds, method = started(*DROP), Careless()
    user_code.load("algorithm.name", f"{__name__}:Careless", "module:Class")
    stream = rounds.fed.stream
    rounds.fed.stream = lambda cohort, *_, **more: stream(
        cohort, lambda client: method.local(rounds.fed, client, rounds.state, 0)
    )
    with pytest.raises(FileNotFoundError, match="/nowhere/notes"):
        rounds.step()


def test_no_client_leaves_a_round_in_which_others_have_computed_with_what_it_sent():
    """An earlier process, which was to stop at a failure, has logged their turns."""
    fed = started(*DROP).fed
    fed.replay.exchanges = 1
    with fed.store.undo_log.set_recording():
        fed.run([0], lambda client: None)
    assert not fed.replay.has_late_turns()
    fed.replay.of(0).turns.append(Turn(None, None, [0], late=True))
    assert Entry.decode(fed.replay.of(0).encode()).turns[0].late
    fed.replay.fail(2, 0, "diverged", "client 2 (mlp): the loss is nan")
    with pytest.raises(ConfigError, match=r"the loss is nan\n  client 2 cannot leave the round"):
        fed.turns.share_failures()


def test_a_bug_is_no_failure_of_a_client():
    with pytest.raises(RuntimeError, match="a bug"):
        failing(started(*DROP), RuntimeError("a bug"), 2).step()


def test_a_fitting_batch_is_estimated_from_the_peak_and_the_failed_allocation(monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=10 * 2**30)
    )
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 9 * 2**30)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB. GPU 0 has ...")
    message = error_messages.no_room(
        error, 128, torch.device("cuda"), 2**30
    )  # 9 GiB for a step that took 24 or more
    assert "local.batch = 128" in message and "9.00 GiB of 10.00 GiB at its peak" in message
    assert "local.batch = 48 may fit (an estimate)" in message
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.5)
    assert "of 5.00 GiB at its peak" in error_messages.no_room(
        error, 128, torch.device("cuda"), 2**30
    )
    assert "a smaller model is needed" in error_messages.no_room(
        error, 1, torch.device("cuda"), 2**30
    )


@pytest.mark.parametrize("words", ["could not create a primitive", "can't start new thread"])
def test_errors_of_onednn_and_threads_about_memory_count_as_out_of_memory(words):
    assert error_messages.out_of_memory(RuntimeError(words))
    assert not error_messages.out_of_memory(ValueError(words))
