"""Edge servers between clients and server: bits, bytes, virtual time, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.algorithms import ALGORITHMS, load
from hpcfed.algorithms.events import Coordinator, EventBased
from hpcfed.clients import edges
from hpcfed.comm import Serial
from hpcfed.config.edges import Edges
from hpcfed.core.errors import ConfigError, DataError, DivergedError
from hpcfed.engine import dryrun
from hpcfed.engine.decide import world
from hpcfed.engine.job_warnings import odd_settings
from hpcfed.engine.rounds import Rounds
from hpcfed.federation.exchange import Exchange
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from tests.contract import models, toy
from tests.threads import spmd

MLP = (
    *("--models.mix", "mlp", "--rounds", "4"),
    *("--evaluate.before", "false", "--training.engine", "eager"),
)
THREE = ("--edges.number", "3")
FREE = ("--edges.latency", "0", "--edges.bandwidth", "1e300")  # what an edge's exchange takes
OWN = {"fed2": "cnn"}  # what a method needs for a model, where it is not an mlp
# with several exchanges or means; and of those with one what exchanges all, rows, a head, a proxy
MEANS = [n for n in ALGORITHMS if load(n)().edges and {"round", "aggregate"} & {*vars(load(n))}]
MEANS += ["fedavg", "fed2", "fedclassavg", "lgfedavg", "fml"]
BYTES = 65136  # of the mlp
BETWEEN = ("rounds/edges_down", "rounds/edges_up")


def column(outcome: toy.Outcome, name: str) -> list[float]:
    return [row[name] for row in outcome.rows]


def flat_rows(outcome: toy.Outcome) -> list[dict]:
    """The rows without the traffic between edges and server."""
    return [{n: v for n, v in row.items() if n not in BETWEEN} for row in outcome.rows]


@pytest.mark.parametrize("method", MEANS)
def test_edges_that_are_aggregated_each_round_give_the_bits_of_no_edges(method, monkeypatch):
    """An edge for each client, so that both hops carry the same bytes."""
    mix = OWN.get(method, "mlp")
    flags = ("--models.mix", mix, "--rounds", "2", "--evaluate.every", "2")
    flags += ("--evaluate.before", "false", "--training.engine", "eager")
    flat = toy.run(Serial(), toy.job(method, *flags))
    monkeypatch.delattr(Exchange, "gather")  # edges could not add up what is sent one by one
    outcome = toy.run(Serial(), toy.job(method, *flags, "--edges.number", "6", *FREE))
    assert toy.differences(outcome.state, flat.state) == []
    assert toy.differences(flat_rows(outcome), flat.rows) == []
    for name in ("down", "up"):
        assert column(outcome, f"rounds/edges_{name}") == flat.column(name).sum(1).tolist()


@pytest.mark.parametrize("method", ["fedavg", "fedasync", "fedbuff"])
def test_edges_with_models_of_their_own_have_the_same_bits_on_any_ranks_and_after_resume(
    method: str, tmp_path: Path
):
    """Stopped where the edges differ from the server."""
    job = toy.job(method, *MLP, *THREE, "--edges.rounds", "2")
    want = toy.run(Serial(), job)
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []
    spmd(2, lambda comm: toy.run(comm, job, rounds=3, save=tmp_path))
    again = toy.run(Serial(), job, resume=tmp_path)
    assert toy.differences(again.state, want.state) == []
    assert toy.differences(again.rows, want.rows[3:]) == []


@pytest.mark.parametrize("method", ["fedavg", "lgfedavg"])
def test_a_single_edge_is_the_server_whenever_that_aggregates_it(method: str):
    flat = toy.run(Serial(), toy.job(method, *MLP))
    one = toy.run(Serial(), toy.job(method, *MLP, "--edges.number", "1", "--edges.rounds", "2"))
    assert toy.differences(one.state, flat.state) == []
    assert toy.differences(one.weights, flat.weights) == []


@pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
def test_asynchronous_merges_at_a_single_edge_are_those_at_the_server(method: str):
    flat = toy.run(Serial(), toy.job(method, *MLP))
    one = toy.run(Serial(), toy.job(method, *MLP, "--edges.number", "1", *FREE))
    model = (lambda s: s) if method == "fedasync" else (lambda s: s["model"])
    assert toy.differences(model(one.state), model(flat.state)) == []
    assert toy.differences(flat_rows(one), flat.rows) == []


def test_the_server_averages_the_models_that_edges_make_in_their_own_rounds():
    """HierFAVG with two rounds at each edge, by the clients' own uploads in plain arithmetic."""
    job = toy.job("fedavg", *MLP, "--participation", "1", *THREE, "--edges.rounds", "2")
    going = toy.start(Serial(), job)
    want, total = going.state * 0.0, sum(toy.SIZES)
    for e in range(3):
        state = going.state
        for t in range(2):
            going.begin(t)
            sent = [
                going.algorithm.local(going.fed, c, state, t) for c in going.fed.mine([e, e + 3])
            ]
            terms = [upload.value.terms[0] for upload in sent]
            weight = sum(term.weight for term in terms)
            state = sum_up([(term.weight / weight) * term.value for term in terms])
        want = want + ((toy.SIZES[e] + toy.SIZES[e + 3]) / total) * state
    server_state = toy.run(Serial(), job, rounds=2).state
    for name, value in want.items():
        torch.testing.assert_close(server_state[name], value, rtol=1e-5, atol=1e-6)


def sum_up(values: list) -> dict:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def test_an_edge_fetches_and_sends_one_model_for_each_aggregation_of_the_server():
    flags = ("--participation", "1", *THREE, "--edges.rounds", "2", "--system.speed", "1e30")
    outcome = toy.run(Serial(), toy.job("fedavg", *MLP, *flags))
    assert column(outcome, "rounds/edges_down") == [3 * BYTES, 0, 3 * BYTES, 0]
    assert column(outcome, "rounds/edges_up") == [0, 3 * BYTES, 0, 3 * BYTES]
    assert (outcome.column("down") == BYTES).all() and (outcome.column("up") == BYTES).all()
    # an edge's exchange 0.1 s and 1e7 bytes per second, a client's 0.1 s and 1e6
    client, hop = 0.1 + 2 * BYTES / 1e6, BYTES / 1e7
    times = np.cumsum([0.1 + hop + client, client + hop, 0.1 + hop + client, client + hop])
    assert column(outcome, "rounds/virtual_seconds") == pytest.approx(times.tolist(), rel=1e-12)


def test_a_dry_run_prints_the_bytes_between_edges_and_the_server(capsys):
    job = toy.job("fedavg", *MLP, *THREE, "--edges.rounds", "2", "--participation", "1")
    rounds = toy.start(Serial(), job)
    dryrun.show(job, world(job, Serial()), rounds.fed)
    out = " ".join(capsys.readouterr().out.split())
    assert "3 edges and the server, every 2 rounds, with all clients: 195.4 kB down, 195.4" in out
    outcome = toy.run(Serial(), job)
    assert column(outcome, "rounds/edges_up")[1] == 3 * BYTES  # 195.4 kB


def test_edges_wait_for_one_another_only_if_the_server_aggregates_them():
    """The clients of edge 0 are slow, and its link too."""
    flags = ("--participation", "1", "--edges.rounds", "2", "--system.speed", "1e30")
    edges = ("--edges.number", "2", "--edges.clients", "0,0,1,1,1,1")
    slow = ("--edges.latency", "5,0.5", "--edges.bandwidth", "1e300")
    outcome = toy.run(Serial(), toy.job("fedavg", *MLP, *flags, *edges, *slow))
    client = 0.1 + 2 * BYTES / 1e6
    want = [5 + client, 5 + 2 * client, 10 + 3 * client, 10 + 4 * client]
    assert column(outcome, "rounds/virtual_seconds") == pytest.approx(want, rel=1e-12)


def test_asynchronous_clients_wait_while_their_edge_exchanges_models_with_the_server():
    """All clients alike and at work, so that each merges once per round."""
    flags = ("--participation", "1", *THREE, "--edges.rounds", "2", "--system.speed", "1e30")
    outcome = toy.run(Serial(), toy.job("fedasync", *MLP, *flags, "--edges.latency", "5"))
    job, hop = 0.1 + 2 * BYTES / 1e6, BYTES / 1e7
    arrival = 5 + hop  # the edges fetch the first model
    # jobs that begin as the second round ends have what the edge had; the next ones wait
    waited = arrival + 2 * job + 5 + 2 * hop
    times = [arrival + job, arrival + 2 * job, arrival + 3 * job, waited + job]
    assert column(outcome, "rounds/virtual_seconds") == pytest.approx(times, rel=1e-12)
    assert column(outcome, "rounds/edges_down") == [3 * BYTES, 0, 0, 3 * BYTES]  # when they start
    assert column(outcome, "rounds/edges_up") == [0, 3 * BYTES, 0, 3 * BYTES]


def test_asynchronous_clients_do_not_wait_for_an_edge_without_models():
    links = ("--edges.latency", "0,1000", "--edges.bandwidth", "1e12", "--edges.rounds", "1")
    devices = ("--system.latency", "1", "--system.bandwidth", "1e12", "--system.speed", "1e15")
    one_empty = ("--edges.number", "2", "--edges.clients", "0,0,0,0,0,0")
    outcome = toy.run(Serial(), toy.job("fedasync", *MLP, *links, *devices, *one_empty))
    assert column(outcome, "rounds/virtual_seconds")[-1] < 10


def test_a_client_is_evaluated_and_saved_with_the_model_of_its_edge(tmp_path: Path):
    flags = (*THREE, "--edges.rounds", "4", *MLP, "--participation", "1")
    run = models.saved_run(tmp_path / "run", "fedavg", *flags, rounds=3)
    record = models.load(run)
    assert record.arrays["edges"].tolist() == [0, 1, 2, 0, 1, 2]
    take = lambda source: list(Saved(run, source, [1, 2, 4]).models())  # noqa: E731
    models_by_client = {model.about.client: model for model in from_newest(run, take)}
    for model in models_by_client.values():
        assert models.counted(model, record)[0] == models.counted(model, record)[1]
    x = torch.from_numpy(toy.blobs(20, toy.rng.stream(3, "images"))[0])
    y = {k: model(x) for k, model in models_by_client.items()}
    assert torch.equal(y[1], y[4]) and not torch.equal(y[1], y[2])


def test_edges_without_clients_in_a_round_are_aggregated_all_the_same():
    """Most rounds reach nobody; what edges have made before is not lost."""
    flags = (*MLP, "--rounds", "8", "--system.availability", "0.1", "--participation", "0.34")
    outcome = toy.run(Serial(), toy.job("fedavg", *flags, *THREE, "--edges.rounds", "2"))
    empty = ~outcome.column("cohort").any(1)
    assert empty[1::2].any() and not empty.all()
    up = np.array(column(outcome, "rounds/edges_up"))
    assert not up[::2].any() and up.sum() == sum(column(outcome, "rounds/edges_down"))


def test_a_client_that_fails_leaves_its_edge_as_it_leaves_the_server(monkeypatch):
    """With run.on_client_fault = "drop" an edge goes on without it; state and time are undone."""
    flags = (*MLP, *THREE, "--participation", "1", "--run.on_client_fault", "drop")

    def run(*more: str) -> toy.Outcome:
        job = toy.job("fedavg", *flags, *more)
        local = type(job.algorithm).local

        def failing(self, fed, client, state, t):
            if client.id == 3 and t == 1:
                raise DivergedError("made up")
            return local(self, fed, client, state, t)

        monkeypatch.setattr(type(job.algorithm), "local", failing)
        outcome = toy.run(Serial(), job)
        monkeypatch.setattr(type(job.algorithm), "local", local)
        return outcome

    each, edges_run = run(), run("--edges.rounds", "2")
    assert each.column("cohort").sum(1).tolist() == [6, 5, 6, 6]
    assert edges_run.column("cohort").sum(1).tolist() == [6, 5, 6, 6]
    assert column(edges_run, "rounds/edges_up") == [0, 3 * BYTES, 0, 3 * BYTES]


@pytest.mark.parametrize(
    "flags, message",
    [
        (("fedavg", "--edges.rounds", "2"), "edges.rounds = 2 has no effect: edges.number = 0"),
        (("fedavg", "--edges.number", "7"), "edges.number = 7: there are 6 clients"),
        (("fedavg", *THREE, "--edges.clients", "0,1"), "names the edge of 2 clients, the job has"),
        (("fedopt", *THREE, "--edges.rounds", "2"), "set edges.rounds = 1"),
        (("fedavg", *THREE, "--edges.rounds", "5"), "rounds = 5: the job has 4 rounds, so that"),
        (("fedproto", *THREE), "fedproto does not average one model of all clients"),
        (("fedcompass", *THREE), "fedcompass does not average one model of all clients"),
        (("swift", *THREE), "swift does not average one model of all clients"),
        (("local", *THREE), "local does not average one model of all clients"),
        (("fedavg", *THREE, "--edges.clients", "0,1,2,3,0,0"), "client 3 has edge 3"),
        (("fedavg", *THREE, "--edges.latency", "1,2"), "latency has 2 numbers for 3 edges"),
    ],
)
def test_edges_without_effect_or_sense_are_refused(flags: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        toy.job(*flags, *MLP)


def test_work_of_the_last_rounds_that_the_server_does_not_aggregate_is_said():
    def said(rounds: int) -> list[str]:
        job = toy.job("fedavg", *MLP, *THREE, "--edges.rounds", "2", "--rounds", str(rounds))
        return [line for line in odd_settings(job) if line.startswith("edges.rounds")]

    assert said(4) == []
    (line,) = said(5)
    assert "of the last round of 5" in line and "its model is that of round 4" in line


def test_edges_serve_events_unless_a_coordinator_decides_for_all_clients_together():
    class Plain(EventBased):
        """Merges as results arrive."""

    class Ordered(Coordinator):
        def order(self, clients: list[int]) -> list[int]:
            return clients[::-1]

    class InOrder(Plain):
        coordinator = property(lambda self: Ordered())

    assert (Plain().edges, InOrder().edges) == ("models", "")


def test_a_file_of_edges_is_a_list_of_them(tmp_path: Path):
    path = tmp_path / "edges.csv"
    path.write_text("client,edge\n5,1\n0,0\n1,2\n2,2\n3,0\n4,1\n")
    from_file = toy.job("fedavg", *MLP, *THREE, "--edges.file", str(path))
    going: Rounds = toy.start(Serial(), from_file)
    assert going.fed.edges.of.tolist() == [0, 2, 2, 0, 1, 1]
    from_list = toy.job("fedavg", *MLP, *THREE, "--edges.clients", "0,2,2,0,1,1")
    assert toy.differences(toy.run(Serial(), from_file), toy.run(Serial(), from_list)) == []


@pytest.mark.parametrize(
    "lines, message",
    [
        ("0,0\n1,3\n", "client 1 has edge 3; edges are 0..2"),
        ("0,0\n0,1\n", "has 2 lines for 2 clients; give one line for each"),
        ("0,0\n", "has 1 lines for 2 clients"),
        ("0,x\n1,0\n", "write client,edge as numbers"),
    ],
)
def test_a_file_of_edges_that_is_wrong_is_refused(lines: str, message: str, tmp_path: Path):
    path = tmp_path / "edges.csv"
    path.write_text(f"client,edge\n{lines}")
    with pytest.raises(DataError, match=message):
        edges.assign(Edges(number=3, file=path), 2)
