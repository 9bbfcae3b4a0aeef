"""Virtual time of event-based methods: which jobs end when, what is merged in which order, who
waits for whom.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from hpcfed.algorithms.asynchronous import fedbuff
from hpcfed.algorithms.asynchronous.fedasync import FedAsync
from hpcfed.algorithms.asynchronous.fedbuff import FedBuff
from hpcfed.algorithms.asynchronous.fedcompass import FIRST, LATE, Compass, FedCompass, State
from hpcfed.algorithms.asynchronous.staleness import damping
from hpcfed.algorithms.events import EventBased
from hpcfed.clients.participation import Draws
from hpcfed.clients.profiles import Profiles
from hpcfed.clients.traces import Trace
from hpcfed.comm import Serial
from hpcfed.config.sections import Local
from hpcfed.config.system import System
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.engine import events
from hpcfed.engine.event_queue import EventQueue, Free
from hpcfed.engine.events import Events
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.upload import Upload
from hpcfed.results.summary import traffic
from hpcfed.storage.record import Record
from tests import saving
from tests.contract import toy
from tests.threads import spmd

SPEEDS = (1.0, 2.0, 5.0)  # examples per second; each client has ten


def agenda(at_once: int = 3, local: Local | None = None, **system: float) -> EventQueue:
    profiles = Profiles(
        *map(np.array, (SPEEDS, [1.0] * 3, [0.0] * 3, [system.pop("reach", 1.0)] * 3, [1.0] * 3))
    )
    draws = Draws(0, System(**system), local or Local(), profiles, (10, 10, 10))
    return EventQueue(draws, at_once, profiles.compute)


def trace(going: EventQueue, reports: int) -> list[tuple[float, int, int]]:
    """Time, client and number of each job that ends."""
    going.fill()
    return [(e.job.finish, e.job.client, e.job.number) for e in going.advance(reports)]


def test_jobs_end_in_the_order_of_time_and_then_of_clients():
    # jobs last 10, 5 and 2 seconds
    want = [
        (2, 2, 0),
        (4, 2, 1),
        (5, 1, 0),
        (6, 2, 2),
        (8, 2, 3),
        (10, 0, 0),
        (10, 1, 1),
        (10, 2, 4),
        (12, 2, 5),
    ]
    assert trace(agenda(), 9) == want


def test_a_fast_client_completes_more_tasks_and_waits_for_no_other():
    ended = trace(agenda(), 800)
    assert np.bincount([k for _, k, _ in ended]).tolist() == [100, 200, 500]


def test_in_two_pieces_with_a_save_between_it_is_the_same():
    complete, first = trace(agenda(dropout=0.3, reach=0.7), 40), agenda(dropout=0.3, reach=0.7)
    begun = trace(first, 15)
    again = agenda(dropout=0.3, reach=0.7)
    again.from_tree(first.to_tree())
    assert (
        begun + [(e.job.finish, e.job.client, e.job.number) for e in again.advance(25)] == complete
    )


def test_one_job_at_once_leaves_the_others_free_and_all_are_drawn():
    ended = trace(agenda(at_once=1), 60)
    assert [time for time, *_ in ended] == np.cumsum([10 / SPEEDS[k] for _, k, _ in ended]).tolist()
    assert min(np.bincount([k for _, k, _ in ended])) > 10


def test_lost_tasks_take_a_part_of_their_time_and_block_no_client():
    going = agenda(dropout=0.5)
    going.fill()
    ended = going.advance(200)
    lost = [e.job for e in ended if not e.job.reports]
    assert sum(e.job.reports for e in ended) == 200 and 140 < len(lost) < 260
    assert all(
        job.finish - job.start == pytest.approx(job.share * 10 / SPEEDS[job.client]) for job in lost
    )
    assert all(len(e.started) == 1 for e in ended)


def test_an_unreachable_client_starts_later_by_the_time_of_complete_tasks():
    going = agenda(reach=0.5)
    begun = [
        (e.job.start, e.job.client)
        for _ in [going.fill()]
        for e in going.advance(300)
        if e.job.client == 0
    ]
    # jobs last 10 s; each draw of 1/2 is one more
    gaps = np.diff([start for start, _ in begun]) / 10
    assert np.allclose(gaps, gaps.round()) and 1.6 < gaps.mean() < 2.4


def test_tasks_start_when_the_trace_makes_the_client_available_at_its_speed():
    """Client 0 is there for half of every 25 seconds, with another speed each time."""
    times = np.arange(2000) * 12.5
    available, speeds = np.arange(2000) % 2 == 0, 1.0 + np.arange(2000) % 7
    available[-1] = True
    ends = np.array([0, 2000, 2000, 2000])
    going = agenda(reach=0.4)
    profiles = replace(going.draws.profiles, trace=Trace(ends, times, available, speeds))
    going.draws = replace(going.draws, profiles=profiles)
    going.seconds = profiles.compute
    going.fill()
    jobs = [e.job for e in going.advance(300) if e.job.client == 0]
    lines = [profiles.trace.line(0, job.start) for job in jobs]
    assert len(jobs) > 50 and all(available[i] for i in lines)
    want = [10 / speeds[i] for i in lines]
    assert [job.finish - job.start for job in jobs] == pytest.approx(want)


def test_stragglers_do_a_part_of_their_epochs_in_a_part_of_the_time():
    going = agenda(local=Local(epochs=4, stragglers=1.0))
    going.fill()
    jobs = [e.job for e in going.advance(200)]
    assert {job.amount for job in jobs} == {1, 2, 3, 4}
    assert all(
        job.finish - job.start == pytest.approx(job.amount * 10 / SPEEDS[job.client])
        for job in jobs
    )


def started(method: str, *flags: str, comm=None) -> Rounds:
    return toy.start(
        comm or Serial(), toy.job(method, "--models.mix", "mlp", "--participation", "1", *flags)
    )


def sends_ten_or_one(self, fed, client, job) -> Upload:
    """What client 0 and client 1 send, in place of a job's result."""
    return Upload(Params(x=torch.tensor([10.0, 1.0][client.id])))


def test_a_fixed_trace_reproduces_three_merges_by_hand(monkeypatch: pytest.MonkeyPatch):
    """Client 1 sends 1 at time 1 and again at time 2, client 0 sends 10 at time 3 and has seen
    neither.
    """
    monkeypatch.setattr(FedAsync, "work", sends_ten_or_one)
    monkeypatch.setattr(FedAsync, "init", lambda self, fed: Params(x=torch.tensor(0.0)))
    monkeypatch.setattr(FedAsync, "seconds", lambda self, fed, k, examples: (3.0, 1.0)[k])
    flags = (
        "--clients",
        "2",
        "--data.train_limit",
        "20",
        "--algorithm.merges",
        "3",
        "--algorithm.alpha",
        "0.5",
        "--algorithm.a",
        "1",
        "--evaluate.every",
        "9",
        "--evaluate.before",
        "false",
    )
    rounds, merges = started("fedasync", *flags), []
    merge = FedAsync.merge

    def noted(self, fed, job, current, up, near):
        merges.append((job.finish, job.client, job.staleness, current["x"].item()))
        return merge(self, fed, job, current, up, near)

    monkeypatch.setattr(FedAsync, "merge", noted)
    rounds.algorithm = rounds.fed.job.algorithm
    rounds.begin(0)
    after = rounds.schedule.round(rounds.fed, rounds.state, [0, 1], 0)
    # x_1 = 0.5 * 0 + 0.5 * 1, x_2 = 0.5 * x_1 + 0.5 * 1; client 0 comes before 1 at time 3: s = 2,
    # alpha = 0.5 / 3
    assert merges == [(1.0, 1, 0, 0.0), (2.0, 1, 0, 0.5), (3.0, 0, 2, 0.75)]
    assert after["x"].item() == pytest.approx(5 / 6 * 0.75 + 10 / 6)


def test_a_far_faster_client_reports_several_times_in_a_round_and_is_computed_once_each_time(
    tmp_path,
):
    path = tmp_path / "p.csv"
    lines = [f"{k},{10.0 ** (6 + (k == 3))},1e9,0.0,1" for k in range(6)]
    path.write_text("\n".join(["client,speed,bandwidth,latency,availability", *lines]))
    for method in ("fedasync", "swift"):
        job = toy.job(
            method,
            "--models.mix",
            "mlp",
            "--participation",
            "1",
            "--system.distribution",
            "file",
            "--system.file",
            str(path),
            "--data.sizes",
            "equal",
        )
        want = toy.run(Serial(), job)
        reports, sizes = want.column("reports"), np.array(toy.SIZES)
        assert reports.sum(1).tolist() == [6, 6, 6] and reports[:, 3].max() > 1
        assert (want.column("examples") == reports * sizes).all()
        for got in spmd(3, lambda comm, job=job: toy.run(comm, job)):
            assert toy.differences(got, want) == []


def test_each_loss_of_a_client_counts_though_it_is_lost_several_times_in_a_round():
    """A message has one size, so each download per job has it."""
    job = toy.job("fedasync", "--models.mix", "mlp", "--system.dropout", "0.8", "--rounds", "2")
    outcome = toy.run(Serial(), job)
    assert outcome.column("lost").max() > 1
    columns = {f"clients/{n}": outcome.column(n) for n in ("reports", "lost", "down", "up")}
    bytes_ = toy.start(Serial(), job).fed.initial().nbytes
    about = traffic(Record({"architectures": ["mlp"] * 6}, {}, columns, 2))
    assert about["down_per_client_round"] == about["up_per_client_round"] == bytes_


def test_a_client_that_is_reached_late_gets_the_model_of_that_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path
):
    job = toy.job(
        "fedasync", "--models.mix", "mlp", "--rounds", "10", "--system.availability", "0.3"
    )
    merges, events, merge = [], [], Events.merge

    def noted(self, work, state):
        events.append(
            (work.staleness, sum(work.start < time for time in merges))
        )  # those after it had started
        merges.append(work.finish)
        return merge(self, work, state)

    with monkeypatch.context() as patch:
        patch.setattr(Events, "merge", noted)
        want = toy.run(Serial(), job)
    assert (
        all(staleness == after for staleness, after in events)
        and len({after for _, after in events}) > 1
    )
    toy.run(Serial(), job, between=lambda rounds: saving.save(rounds, tmp_path / str(rounds.t)))
    for t in range(1, 10):
        resumed = toy.run(Serial(), job, resume=tmp_path / str(t))
        assert toy.differences(resumed.state, want.state) == []
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


def test_updates_that_are_too_stale_are_rejected_but_count_as_traffic():
    rounds = started("fedasync", "--algorithm.max_staleness", "0", "--rounds", "2")
    row = rounds.step()[0]
    assert (
        rounds.schedule.version == 1 and row["clients/reports"].sum() == 6
    )  # the first merge makes all others stale
    assert (row["clients/up"] == rounds.fed.initial().nbytes).all() and row[
        "rounds/staleness"
    ] == 5 / 6
    assert sorted(row["clients/staleness"]) == [0, 1, 1, 1, 1, 1]


def test_alpha_zero_changes_nothing():
    rounds = started("fedasync", "--algorithm.alpha", "0")
    before = rounds.state.clone()
    rounds.step()
    assert toy.differences(rounds.state, before) == []


def test_alpha_falls_at_its_rounds():
    method, up, current = (
        FedAsync(alpha=0.5, decay=0.5, decay_at=(2,)),
        Params(x=torch.ones(1)),
        Params(x=torch.zeros(1)),
    )
    fed = started("fedasync").fed
    job = events.Work(client=0, number=0, start=0.0, finish=1.0, amount=1)
    weights = []
    for fed.tallies.t in (0, 1, 2, 3):
        weights.append(method.merge(fed, job, current, up, {})["x"].item())
    assert weights == [0.5, 0.5, 0.25, 0.25]
    assert (
        method.merge(fed, replace(job, staleness=3), current, up, {})["x"].item() == 0.125
    )  # 0.25 (3 + 1)^-0.5


@pytest.mark.parametrize("kind", ["const", "poly", "hinge"])
def test_a_fresh_update_counts_fully_and_a_staler_one_never_more(kind: str):
    values = [damping(s, kind, a=0.5, b=4) for s in range(30)]
    assert values[0] == 1.0 and all(x >= y > 0 for x, y in pairwise(values))


def test_damping_by_hand():
    assert damping(3, "poly", 0.5, 4) == 0.5
    assert [damping(s, "hinge", 10, 4) for s in (4, 5, 6)] == [1.0, 1 / 11, 1 / 21]


def test_a_neighbour_is_read_as_it_was_sent_not_as_it_has_just_become(
    monkeypatch: pytest.MonkeyPatch,
):
    """All end at the same time: each averages what was sent at the start, so the order of merges is
    of no effect.
    """
    monkeypatch.setattr("hpcfed.algorithms.decentralised.swift.train", lambda *_: None)
    flags = (
        "--algorithm.topology",
        "complete",
        "--evaluate.every",
        "9",
        "--data.sizes",
        "equal",
        "--clients",
        "5",
        "--data.train_limit",
        "50",
    )
    rounds = started("swift", *flags)
    for client in rounds.fed.clients.values():
        client.load({"head.bias": torch.full((toy.CLASSES,), float(client.id))})
        client.memory["before"] = client.params()
    rounds.step()
    models = [client.params() for client in rounds.fed.clients.values()]
    assert all(
        toy.differences(m, models[0]) == [] for m in models
    )  # no step, equal weights: all are equal at once
    assert models[0]["head.bias"][0].item() == pytest.approx(2.0)  # (0 + 1 + 2 + 3 + 4) / 5


def test_a_deadline_is_refused_where_there_are_no_rounds():
    with pytest.raises(ConfigError, match="fedasync needs no deadline"):
        toy.job("fedasync", "--models.mix", "mlp", "--system.deadline", "5")


def test_a_method_without_merge_is_refused():
    with pytest.raises(NotImplementedError, match="EventBased does not say"):
        EventBased().merge(None, None, None, None, {})


def test_the_free_clients_are_counted_as_a_sorted_list_of_them_would_be():
    g, free, want = np.random.default_rng(0), Free(21, busy=[3, 20]), {*range(21)} - {3, 20}
    for k in g.integers(0, 21, 200).tolist():
        (free.take if k in want else free.release)(k)
        want ^= {k}
        assert [free[i] for i in range(free.n)] == sorted(want)
        assert free.busy.tolist() == sorted({*range(21)} - want)


def test_fedbuff_makes_a_model_of_every_two_updates_by_hand(monkeypatch: pytest.MonkeyPatch):
    """Client 1 sends 1 at times 1, 2 and 3, client 0 sends 10 at time 3 and has seen no new
    model.
    """
    monkeypatch.setattr(FedBuff, "work", sends_ten_or_one)
    zero = Params(x=torch.tensor(0.0))
    monkeypatch.setattr(FedBuff, "init", lambda self, fed: fedbuff.State(zero, zero, Params()))
    monkeypatch.setattr(FedBuff, "seconds", lambda self, fed, k, examples: (3.0, 1.0)[k])
    two = ("--clients", "2", "--data.train_limit", "20", "--evaluate.before", "false")
    flags = ("--algorithm.merges", "4", "--algorithm.K", "2", "--algorithm.a", "1")
    rounds = started("fedbuff", *two, *flags, "--evaluate.every", "9", "--algorithm.lr", "0.5")
    rounds.begin(0)
    after = rounds.schedule.round(rounds.fed, rounds.state, [0, 1], 0)
    # -0.5 (1 + 1) / 2 = -0.5; then client 0 with staleness 1, so half of 10, and client 1 with 0
    assert after.model["x"].item() == -0.5 - 0.5 * (5 + 1) / 2
    assert after.buffer["x"].item() == 0 and rounds.schedule.version == 2


def test_fedbuff_needs_enough_merges_for_a_model():
    mlp, few = (
        ("--models.mix", "mlp"),
        r"needs at least algorithm.K = 10 merges for a new model, but the job's 3 rounds have ",
    )
    with pytest.raises(ConfigError, match=few + "9\n"):
        toy.job("fedbuff", *mlp, "--algorithm.K", "10")
    edges = (*mlp, "--edges.number", "3", "--edges.rounds", "2", "--algorithm.K", "4")
    with pytest.raises(ConfigError, match="have 3 at each of 3 edges\n.*a smaller"):
        toy.job("fedbuff", *edges)
    toy.job("fedbuff", *edges, "--rounds", "4")


def compass(
    speeds: tuple[float, ...],
    slower: dict[tuple[int, int], float] | None = None,
    stragglers: float = 0.0,
    reach: float = 1.0,
) -> EventQueue:
    """Clients of one example, so many steps per second; slower: factor of the seconds of a client's
    job, by their numbers.
    """
    n, jobs = len(speeds), [0] * len(speeds)
    profiles = Profiles(*map(np.array, (speeds, [1.0] * n, [0.0] * n, [reach] * n, [1.0] * n)))
    local = Local(steps=100, batch=1, stragglers=stragglers)
    draws = Draws(0, System(), local, profiles, (1,) * n)

    def seconds(k: int, examples: int) -> float:
        jobs[k] += 1
        return profiles.compute(k, examples) * (slower or {}).get((k, jobs[k] - 1), 1.0)

    return EventQueue(draws, n, seconds, Compass(FedCompass()))


def compass_trace(queue: EventQueue, reports: int) -> list[tuple]:
    """Time, client, steps and group of what ends, and the group that closes."""
    queue.fill()
    return [
        (e.time, *((e.job.client, e.job.amount, e.job.group) if e.job else (None,) * 3), e.closes)
        for e in queue.advance(reports)
    ]


def test_clients_of_equal_speed_are_one_group_and_do_all_steps():
    jobs = [(100.0, k, 100, FIRST, FIRST) for k in range(3)]
    then = [(200.0, k, 100, 1, 1 if k == 2 else None) for k in range(3)]
    assert compass_trace(compass((1.0, 1.0, 1.0)), 6) == jobs + then


def test_a_client_four_times_slower_does_a_quarter_and_arrives_with_the_fast_one():
    events = compass_trace(compass((4.0, 1.0)), 9)
    alone = [(25.0, 0, 100, FIRST, FIRST), *((25.0 * i, 0, 100, i - 1, i - 1) for i in (2, 3, 4))]
    together = [(125.0, 0, 100, 4, None), (125.0, 1, 25, 4, 4)]
    again = [(150.0, 0, 100, 5, None), (150.0, 1, 25, 5, 5)]
    assert events == [*alone, (100.0, 1, 100, FIRST, FIRST), *together, *again]


def test_a_group_closes_after_its_slack_and_late_clients_get_work_at_once():
    queue = compass((1.0, 1.0), slower={(1, 1): 1.5})
    events = compass_trace(queue, 4)
    jobs = [(100.0, 0, 100, FIRST, FIRST), (100.0, 1, 100, FIRST, FIRST)]
    # both expected at 200; client 0 waits until 100 + 1.2 * 100
    assert events[:4] == [*jobs, (200.0, 0, 100, 1, None), (220.0, None, None, None, 1)]
    # client 0's next group is expected at 320, and client 1, now known as slower, comes at 250
    assert events[4] == (250.0, 1, 100, LATE, None)
    job = queue.going[1]
    assert (job.start, job.amount) == (250.0, int(70 / (0.1 * 1 + 0.9 * 1.5)))


def test_a_save_in_the_middle_of_a_group_changes_nothing():
    complete, first = compass_trace(compass((4.0, 1.0, 0.9)), 30), compass((4.0, 1.0, 0.9))
    begun = compass_trace(first, 11)
    again = compass((4.0, 1.0, 0.9))
    again.from_tree(first.to_tree())
    assert again.coordinator.groups == first.coordinator.groups
    assert begun + compass_trace(again, 19) == complete
    steps = [steps for _, client, steps, group, _ in complete if client is not None and group > 0]
    assert all(20 <= n <= 100 for n in steps)


def test_a_group_that_closes_takes_the_late_ones_along_by_hand():
    fed = started("fedcompass").fed  # six clients work at the same time
    one = lambda x: Params(x=torch.tensor(x))  # noqa: E731
    waiting = {"3 0": one(10.0), f"{LATE} 3": one(4.0), "5 1": one(7.0)}
    state = State(one(2.0), waiting, {"3 0": 2, f"{LATE} 3": 1, "5 1": 1})
    after = Compass(FedCompass(alpha=0.6)).close(fed, state, 3)
    # a = 0.1 for each of the two whose sum is 10, 0.1 (3 + 1)^-0.5 for the late one
    assert after.model["x"].item() == pytest.approx((1 - 0.25) * 2 + 0.1 * 10 + 0.05 * 4)
    assert after.counts == {"5 2": 1} and after.waiting["5 2"]["x"].item() == 7.0
