"""Synchronous rounds in virtual time: who reports, what those who do not have cost, and how long a
round lasts.
"""

import numpy as np
import pytest

from hpcfed.clients.participation import Draws
from hpcfed.clients.profiles import Profiles
from hpcfed.comm import Serial
from hpcfed.config.sections import Local
from hpcfed.config.system import System
from hpcfed.core.errors import ConfigError
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.run import run_here
from tests import saving
from tests.contract import toy
from tests.threads import spmd

TRAFFIC = (100, 50)  # bytes down and up


def draws(local: Local | None = None, **system: float) -> Draws:
    """Client 0: latency 0.5 s, 2 s down, 1 s up, 0.1 s an example; client 1 works ten times as
    fast.
    """
    profiles = Profiles(
        *map(np.array, ([100.0, 1000.0], [50.0] * 2, [0.5] * 2, [1.0] * 2, [10.0] * 2))
    )
    return Draws(0, System(**system), local or Local(epochs=3), profiles, (20, 20))


def started(method: str, *flags: str, comm=None) -> Rounds:
    return toy.start(
        comm or Serial(), toy.job(method, "--models.mix", "mlp", "--participation", "1", *flags)
    )


@pytest.mark.parametrize(
    "local, amount, want",
    [
        (Local(epochs=3), 3, 60),
        (Local(steps=1, batch=8), 1, 8),
        (Local(steps=1, batch=8), 3, 20),  # batches of 8, 8 and 4
        (Local(steps=1, batch=8), 7, 48),
        (Local(steps=1, batch=64), 2, 40),
    ],
)
def test_the_examples_of_epochs_and_of_steps_are_known_before_they_are_drawn(
    local: Local, amount: int, want: int
):
    assert draws(local).examples(0, amount) == want


def test_without_a_deadline_all_report():
    outcome = draws().outcome(0, [0, 1], {}, False, lambda k: TRAFFIC)
    assert (outcome.reports, outcome.partial, outcome.lost) == ([0, 1], {}, {})


def test_clients_that_miss_the_deadline_are_left_out_and_their_work_counts():
    # client 0 needs 0.5 + 2 + 3 * 2 + 1 = 9.5 s, client 1 needs 0.5 + 2 + 0.6 + 1 = 4.1 s
    outcome = draws(deadline=9.0).outcome(0, [0, 1], {}, False, lambda k: TRAFFIC)
    assert outcome.reports == [1] and outcome.lost == {
        0: 60
    }  # all the work is done, the upload is too late
    assert draws(deadline=9.5).outcome(0, [0, 1], {}, False, lambda k: TRAFFIC).reports == [
        0,
        1,
    ]
    early = draws(deadline=4.5).outcome(0, [0, 1], {}, False, lambda k: TRAFFIC)
    assert early.lost == {0: pytest.approx(20)}  # 2 s of work after latency and download


def test_if_partial_work_counts_late_clients_do_the_epochs_that_fit():
    outcome = draws(deadline=8.0).outcome(0, [0, 1], {}, True, lambda k: TRAFFIC)
    assert (outcome.reports, outcome.partial, outcome.lost) == ([0, 1], {0: 2}, {})  # 7.5 s
    none = draws(deadline=5.4).outcome(0, [0, 1], {}, True, lambda k: TRAFFIC)
    assert none.reports == [1] and none.lost == {0: pytest.approx(29)}  # not even one epoch fits


def test_the_least_time_of_a_client_is_what_it_must_do_to_report():
    """All its work, or where partial work counts the first epoch."""
    least = [[draws().least_seconds(k, keep, TRAFFIC) for k in (0, 1)] for keep in (False, True)]
    assert least == [[pytest.approx(9.5), pytest.approx(4.1)], [5.5, pytest.approx(3.7)]]


@pytest.mark.parametrize("dry", ["--dry_run", "--quiet"])
def test_a_deadline_that_clients_never_meet_is_said_at_the_start_or_refused(
    dry: str, tmp_path, capsys
):
    path = tmp_path / "p.csv"
    lines = [f"{k},1e12,1e12,{float(k)},1" for k in range(6)]  # client k takes k seconds
    path.write_text("\n".join(["client,speed,bandwidth,latency,availability", *lines]))
    words = ("--models.mix", "mlp", "--rounds", "1", "--out", str(tmp_path / "run"), dry, "true")
    words += ("--system.distribution", "file", "--system.file", str(path), "--overwrite", "true")

    def start(*flags: str) -> str:
        assert run_here(toy.job("fedavg", *words, *flags), Serial()) == (0, None)
        return capsys.readouterr().err

    line = "2 of 6 clients can never meet system.deadline = 3.5 (client 4, 5): they need 4 to 5 s"
    assert line in start("--system.deadline", "3.5")
    assert "deadline" not in start("--system.deadline", "5.5")
    path.write_text(path.read_text().replace("0,1e12,1e12,0.0", "0,1e12,1e12,2"))
    with pytest.raises(ConfigError, match="no client can meet system.deadline = 0.5: the fastest"):
        start("--system.deadline", "0.5")
    trace = tmp_path / "trace.csv"
    trace.write_text("client,time,available,speed\n0,0,1,1e12\n")  # speeds change over time
    assert "never meet" not in start("--system.deadline", "0.5", "--system.trace", str(trace))


def test_drop_outs_have_the_probability_that_is_set_and_stop_anywhere():
    shares = [draws(dropout=0.3).dropout(t, k) for t in range(1000) for k in range(2)]
    lost = [share for share in shares if share is not None]
    assert abs(len(lost) / 2000 - 0.3) < 0.04 and 0 <= min(lost) < 0.01 and 0.99 < max(lost) < 1


def test_a_client_is_reached_as_often_as_its_profile_says():
    d = draws()
    d.profiles.availability[0] = 0.25
    assert abs(sum(d.reachable(t, 0) for t in range(2000)) / 2000 - 0.25) < 0.04
    assert all(d.reachable(t, 1) for t in range(50))


def test_a_round_lasts_until_its_slowest_client_has_reported():
    rounds = started("fedavg", "--rounds", "2", "--system.latency", "0.25", "--local.epochs", "2")
    bytes_, profiles = rounds.fed.initial().nbytes, rounds.fed.participants.profiles
    want = 0.25 + 2 * bytes_ / 1e6 + 2 * max(toy.SIZES) * profiles.example[0] / 1e10
    times = [rounds.step()[0]["rounds/virtual_seconds"] for _ in range(2)]
    assert times == pytest.approx([want, 2 * want], rel=1e-12)


def test_a_lost_client_receives_and_works_but_sends_nothing_and_the_server_waits_its_deadline():
    flags = ("--system.dropout", "0.5", "--system.deadline", "1000")
    rounds = started("fedavg", *flags)
    row = rounds.step()[0]
    lost, bytes_ = row["clients/lost"], rounds.fed.initial().nbytes
    assert 0 < lost.sum() < 6 and not (lost & row["clients/cohort"]).any()
    assert (row["clients/down"] == bytes_).all()
    assert (row["clients/up"] == np.where(lost, 0, bytes_)).all()
    assert (row["clients/work"][lost] < np.array(toy.SIZES)[lost]).all() and not row[
        "clients/examples"
    ][lost].any()
    assert row["rounds/virtual_seconds"] == 1000.0


def test_a_deadline_ends_the_round_of_clients_that_are_still_receiving():
    flags = ("--system.bandwidth", "1000", "--system.deadline", "5")  # a download takes longer
    row = started("fedavg", *flags).step()[0]
    assert row["clients/lost"].all() and row["rounds/virtual_seconds"] == 5.0


def test_without_a_deadline_a_lost_client_costs_what_it_had_done():
    rounds = started("fedavg", "--system.dropout", "0.9")
    row = rounds.step()[0]
    cells = zip(*(row[f"clients/{name}"] for name in ("work", "down", "up")), strict=True)
    assert row["rounds/virtual_seconds"] == max(
        rounds.fed.participants.profiles.seconds(k, *c) for k, c in enumerate(cells)
    )


def test_clients_that_cannot_be_reached_cost_nothing():
    rounds = started("fedavg", "--system.availability", "0.5")
    row = rounds.step()[0]
    absent = ~row["clients/cohort"]
    assert 0 < absent.sum() < 6 and not row["clients/lost"].any()
    assert not row["clients/down"][absent].any() and not row["clients/work"][absent].any()


def test_partial_work_before_the_deadline_counts_in_fedprox_alone():
    # a slow device for all: two of four epochs of the largest client fit
    example = started("fedavg").fed.participants.profiles.example[0]
    flags = (
        "--local.epochs",
        "4",
        "--system.speed",
        str(example),
        "--system.latency",
        "0",
        "--system.bandwidth",
        "1e12",
        "--system.deadline",
        "70",
    )
    prox, avg = started("fedprox", *flags).step()[0], started("fedavg", *flags).step()[0]
    assert prox["clients/epochs"].tolist() == [
        4,
        4,
        4,
        4,
        3,
        2,
    ]  # sizes 1, 9, 8, 17, 21, 32: 70 // size
    assert avg["clients/cohort"].tolist() == [True] * 4 + [False] * 2
    assert avg["rounds/virtual_seconds"] == 70.0


HARD = (
    "--system.distribution",
    "lognormal",
    "--system.dropout",
    "0.3",
    "--system.availability",
    "0.8",
    "--system.deadline",
    "0.5",
    "--system.speed",
    "1e6",
    "--rounds",
    "4",
)


@pytest.mark.parametrize("method", ["fedprox", "fedasync", "swift", "dsgd"])
def test_a_hard_system_is_the_same_on_any_ranks_and_after_a_stop(method: str, tmp_path):
    hard = [
        w
        for w in HARD
        if method not in ("fedasync", "swift") or w not in ("--system.deadline", "0.5")
    ]
    job = toy.job(method, *hard, "--models.mix", "mlp")
    want = toy.run(Serial(), job)
    assert want.column("lost").any()
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []
    spmd(2, lambda comm: toy.run(comm, job, rounds=2, save=tmp_path))
    for got in spmd(3, lambda comm: toy.run(comm, job, resume=tmp_path)):
        assert toy.differences(got.rows, want.rows[2:]) == []
        assert (
            toy.differences(
                [got.state, got.weights, got.memory], [want.state, want.weights, want.memory]
            )
            == []
        )


def test_virtual_time_continues_after_a_checkpoint(tmp_path):
    rounds = started("fedavg")
    rounds.step()
    saving.save(rounds, tmp_path)
    again = started("fedavg")
    restore(again, tmp_path)
    assert again.schedule.now == rounds.schedule.now > 0
