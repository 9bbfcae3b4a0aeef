"""A population: clients that make their own examples when they are used, and cost nothing
otherwise.
"""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError, DivergedError
from hpcfed.data.synthetic import SPREAD, Synthetic
from hpcfed.engine import describe, dryrun, events
from hpcfed.engine.decide import world
from hpcfed.engine.folder import read_job
from hpcfed.engine.run import run
from hpcfed.federation.federation import Federation
from hpcfed.report.figures.command import plot
from hpcfed.results import summary
from hpcfed.storage.columns import ByClient, stack_rows
from hpcfed.storage.digest import digest
from hpcfed.storage.results import load as results
from tests.contract import toy
from tests.threads import spmd
from tests.unit.test_turns import failing

POPULATION = Synthetic(0, 1000, 1.0, 1.0, 20, 0.3)
FLAGS = (
    "--models.mix",
    "mlp",
    "--data.partition",
    "natural",
    "--data.examples",
    "20",
    "--participation",
    "0.01",
    "--local.batch",
    "10",
    "--rounds",
    "2",
    "--evaluate.every",
    "1",
    "--log.picture",
    "false",
)


def flags(method: str, clients: int, *more: str) -> list[str]:
    return [
        "--algorithm.name",
        method,
        "--data.name",
        "synthetic",
        "--clients",
        str(clients),
        *FLAGS,
        *more,
    ]


def job(method: str, clients: int, *more: str):
    return load(flags(method, clients, *more), environ={})


def test_a_client_has_the_same_examples_whenever_it_is_made():
    first, again = POPULATION.client_data(7), Synthetic(0, 9, 1.0, 1.0, 20, 0.3).client_data(7)
    assert all(
        np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y)
        for a, b in zip(first, again, strict=True)
    )
    assert (
        first[0].x.shape == (20, 1, 1, 60)
        and first[1].x.shape == (6, 1, 1, 60)
        and first[0].x.dtype == np.float32
    )
    assert not np.array_equal(first[0].x, POPULATION.client_data(8)[0].x)


def test_inputs_vary_as_the_paper_says():
    x = Synthetic(0, 1, 0.0, 0.0, 20_000, 0.1).client_data(0)[0].x.reshape(20_000, 60)
    assert np.allclose(x.std(0), SPREAD, rtol=0.05) and np.isclose(SPREAD[1] ** 2, 2**-1.2)


def test_with_beta_0_clients_centres_differ_by_noise_of_size_one_and_with_beta_more():
    def centres(beta: float) -> np.ndarray:
        some = Synthetic(0, 200, 0.0, beta, 20, 0.1)
        return np.array([some.client_data(k)[0].x.mean() for k in range(200)])

    assert np.isclose(centres(0.0).std(), 60**-0.5, rtol=0.2) and np.isclose(
        centres(2.0).std(), 2.0, rtol=0.2
    )


def test_sizes_are_log_normal_and_at_least_50_unless_given():
    sizes = replace(POPULATION, examples=None, clients=100_000).sizes
    assert sizes.min() == 50 and np.isclose(np.log(np.maximum(sizes - 50, 1)).std(), 2, rtol=0.1)
    assert set(POPULATION.sizes.tolist()) == {20}


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "scaffold"])
def test_a_population_is_the_same_run_on_any_ranks(method):
    more = ("--local.optimiser", "sgd", "--participation", "0.02")
    want = toy.run(Serial(), job(method, 120, *more))
    for got in spmd(3, lambda comm: toy.run(comm, job(method, 120, *more))):
        assert (
            toy.differences([got.state, got.scores, got.rows], [want.state, want.scores, want.rows])
            == []
        )


def test_the_choice_of_recorded_clients_does_not_change_results(monkeypatch):
    few = toy.run(Serial(), job("fedavg", 300, "--evaluate.clients", "cohort"))
    monkeypatch.setattr("hpcfed.engine.round_record.FEW", 300)
    all_rows = toy.run(Serial(), job("fedavg", 300, "--evaluate.clients", "cohort"))
    assert toy.differences([all_rows.state, all_rows.scores], [few.state, few.scores]) == []
    for every, rows in zip(all_rows.rows, few.rows, strict=True):
        ids = rows["clients/id"]
        assert len(ids) == 3 and rows["clients/cohort"].all()
        for name in ("train_loss", "accuracy", "up", "reports"):
            assert np.array_equal(
                every[f"clients/{name}"][ids], rows[f"clients/{name}"], equal_nan=True
            )


PARTIAL = {
    "dropout": ("fedavg", "--system.dropout", "0.5", "--participation", "0.1"),
    "failures": ("fedavg", "--run.on_client_fault", "drop", "--participation", "0.1"),
    "asynchronous": ("fedasync", "--system.distribution", "lognormal", "--system.dropout", "0.3"),
}


@pytest.mark.parametrize("case", PARTIAL)
def test_clients_without_a_row_did_nothing_and_were_not_evaluated(case, monkeypatch):
    method, *more = PARTIAL[case]
    loaded = job(method, 150, *more, "--evaluate.clients", "cohort")

    def rows(few):
        monkeypatch.setattr("hpcfed.engine.round_record.FEW", few)
        rounds = toy.start(Serial(), loaded)
        if case == "failures":
            failing(rounds, DivergedError("no"), *range(0, 150, 2))
        return [rounds.step()[0] for _ in range(2)]

    for full, some in zip(rows(150), rows(100), strict=True):
        ids = some["clients/id"]
        names = [n for n in full if n.startswith("clients/") and not n.endswith("seconds")]
        assert 0 < len(ids) < 150 and (case == "asynchronous" or full["clients/lost"].any())
        block = stack_rows([{name: np.asarray(cell) for name, cell in some.items()}])
        for name in names:
            wanted, column = full[name], ByClient(block, 150)[name][0]
            assert column.dtype == wanted.dtype
            assert np.array_equal(column, wanted, equal_nan=wanted.dtype.kind == "f"), name


@pytest.mark.parametrize("wanted, count", [("all", 300), ("cohort", 3), ("20", 20)])
def test_those_are_evaluated_that_are_asked_for(wanted, count):
    row = toy.run(Serial(), job("fedavg", 300, "--evaluate.clients", wanted)).rows[-1]
    assert np.isfinite(row["clients/accuracy"]).sum() == count


@pytest.mark.parametrize("wanted", ["cohort", "2"])
@pytest.mark.parametrize("validation", ["own", "received"])
def test_a_round_has_scores_of_its_evaluated_clients_alone_however_many_clients_there_are(
    wanted, validation, monkeypatch
):
    """With `local` others have scores of earlier rounds, which still hold."""
    loaded = toy.job(
        *("local", "--rounds", "3", "--participation", "0.34", "--models.mix", "mlp"),
        *("--evaluate.clients", wanted, "--evaluate.metrics", "macro_f1"),
        *("--evaluate.validation", "0.25", "--evaluate.validation_model", validation),
    )
    names = ("accuracy", "loss", "macro_f1", "accuracy_validation")
    rounds = {}
    for few in (100, 1):  # clients up to which each has a row
        monkeypatch.setattr("hpcfed.engine.round_record.FEW", few)
        going = toy.start(Serial(), loaded)
        rounds[few] = [going.step()[0] for _ in range(3)]
        at_end = going.evaluation.metrics.closing()["answered"].tolist()
        for row in rounds[few]:
            ids = row.get("clients/id", np.arange(6))
            evaluated = set(ids[row["clients/cohort"]].tolist())
            if wanted != "cohort":
                evaluated = set(going.evaluation.clients_to_evaluate([]))
            scored = {name: set(ids[np.isfinite(row[f"clients/{name}"])]) for name in names}
            assert all(ks and ks <= evaluated for ks in scored.values()), scored
            assert evaluated - {5} == scored["accuracy"]  # 5 has no test examples
            right = np.rint(row["clients/accuracy"] * np.array(toy.TESTS)[ids])
            pooled = np.nansum(right) / sum(toy.TESTS[k] for k in scored["accuracy"])
            assert row["rounds/accuracy_pooled"] == pooled
        assert set(at_end) == scored["accuracy"]
    for full, some in zip(rounds[100], rounds[1], strict=True):
        for name in names:
            assert np.array_equal(
                full[f"clients/{name}"][some["clients/id"]], some[f"clients/{name}"], equal_nan=True
            )
        for name in ("accuracy", "macro_f1", "accuracy_validation"):
            assert full[f"rounds/{name}_pooled"] == some[f"rounds/{name}_pooled"]


@pytest.mark.parametrize("clients, count", [(1000, 1000), (1001, 11)])
def test_auto_evaluates_everybody_up_to_1000_clients_and_says_so_beyond(clients, count):
    rounds = toy.start(Serial(), job("fedavg", clients))
    row, _ = rounds.step()
    assert np.isfinite(row["clients/accuracy"]).sum() == len(row["clients/id"]) == count
    lines = describe.setting(world(rounds.fed.job, Serial()), rounds.fed)
    assert [line for line in lines if line.startswith("evaluated:")] == (
        []
        if count == clients
        else [
            "evaluated: the cohort of each round, not all 1,001 clients; for all set "
            "evaluate.clients = 'all' (auto evaluates all of up to 1,000)"
        ]
    )


def test_a_round_of_100_among_10_000_takes_15_kilobytes_of_file(tmp_path):
    more = ("--participation", "0.01", "--models.mix", "logistic", "--quiet", "--rounds")
    size = {}
    for rounds in (1, 3):
        out = tmp_path / str(rounds)
        run(job("fedavg", 10_000, *more, str(rounds), "--out", str(out)), Serial())
        size[rounds] = (out / "results.h5").stat().st_size
    assert (size[3] - size[1]) / 2 < 20_000
    record = results(tmp_path / "3")
    assert record.column("clients/accuracy").shape == (3, 10_000)
    console = Console(record=True, file=io.StringIO(), width=120)
    console.print(summary.render(record))
    assert "evaluated clients, last round" in console.export_text()
    assert np.isfinite(record.column("clients/accuracy")).sum(1).tolist() == [100] * 3
    assert record.column("clients/cohort").sum() == 300


def test_after_a_round_only_used_clients_are_in_memory():
    rounds = toy.start(Serial(), job("fedavg", 100_000, "--participation", "0.0001"))
    row, _ = rounds.step()
    assert (
        len(row["clients/id"]) == 10 == len(rounds.fed.clients.objects)
        and list(rounds.fed.store) == []
    )


def test_a_large_population_has_readable_results_and_is_resumed_to_the_bit(tmp_path):
    large = ("--participation", "0.0002", "--checkpoint.every", "1", "--quiet")
    complete, part = (str(tmp_path / name) for name in ("whole", "part"))
    run(job("scaffold", 20_000, *large, "--local.optimiser", "sgd", "--out", complete), Serial())
    run(
        job("scaffold", 20_000, *large, "--local.optimiser", "sgd", "--out", part, "--rounds", "1"),
        Serial(),
    )
    run(load(["--resume", part, "--rounds", "2"], read_job, environ={}), Serial())
    assert digest(tmp_path / "whole") == digest(tmp_path / "part")
    facts = summary.facts(results(tmp_path / "whole"))
    assert (
        facts["accuracy"]["clients"] == 4
        and facts["accuracy"]["by_architecture"]["mlp"]["clients"] == 4
    )
    assert facts["traffic"]["up_total"] > 0 and "curves.png" in plot([tmp_path / "whole"])


@pytest.mark.parametrize(
    "more, words",
    [
        (
            ("--data.partition", "iid"),
            "data.partition = 'iid': the clients of synthetic make their own examples",
        ),
        (
            ("--data.train_limit", "10"),
            "data.train_limit = 10 has no effect: data.name = 'synthetic'",
        ),
        (("--data.public", "10"), "data.public = 10: all examples of synthetic belong to clients"),
        (
            ("--data.public_source", "synthetic"),
            "data.public_source: the examples of synthetic belong",
        ),
    ],
)
def test_options_that_a_population_cannot_have_are_refused_with_advice(more, words):
    with pytest.raises(ConfigError, match=words):
        job("fedavg", 10, *more)


def test_central_training_of_a_population_is_refused():
    with pytest.raises(ConfigError, match="central needs all examples in one place"):
        job("central", 10)


def test_a_plan_of_a_population_is_short(capsys):
    rounds = toy.start(Serial(), job("fedavg", 20_000))
    dryrun.show(rounds.fed.job, world(rounds.fed.job, Serial()), rounds.fed)
    assert len(capsys.readouterr().out) < 20_000


ASYNCHRONOUS = (
    *("--models.mix", "logistic", "--participation", "0.016", "--rounds", "4"),
    *("--system.distribution", "lognormal", "--system.dropout", "0.1"),
    *("--evaluate.clients", "cohort", "--evaluate.every", "4", "--evaluate.before", "false"),
)


@pytest.mark.parametrize("method", ["fedasync", "fedbuff"])
def test_many_asynchronous_clients_have_the_same_bits_on_any_ranks_and_after_resume(
    method: str, tmp_path
):
    """The path of a million (benchmarks/asynchronous.py)."""
    loaded = job(method, 500, *ASYNCHRONOUS, "--participation", "0.02")
    want = toy.run(Serial(), loaded)
    for got in spmd(2, lambda comm: toy.run(comm, loaded)):
        assert toy.differences(got.state, want.state) == []
        assert toy.differences(got.rows, want.rows) == []
    toy.run(Serial(), loaded, rounds=2, save=tmp_path)
    for got in spmd(2, lambda comm: toy.run(comm, loaded, resume=tmp_path)):
        assert toy.differences(got.state, want.state) == []
        assert toy.differences(got.rows, want.rows[2:]) == []


def test_asynchronous_clients_draw_examples_only_to_work_and_keep_only_open_downloads(
    monkeypatch,
):
    clients: list[int] = []
    client_data = Synthetic.client_data

    def counting(self, k):
        clients.append(k)
        return client_data(self, k)

    going = toy.start(Serial(), job("fedasync", 4000, *ASYNCHRONOUS))
    monkeypatch.setattr(Synthetic, "client_data", counting)
    row = going.step()[0]
    reported = row["clients/id"][row["clients/reports"] > 0].tolist()
    assert 0 < len(reported) < 70 and sorted(set(clients)) == reported == sorted(clients)
    assert {*going.fed.store} == {*going.schedule.queue.going}


def test_results_that_are_small_travel_together_with_the_same_bits(monkeypatch):
    loaded = job("fedasync", 200, *ASYNCHRONOUS)
    want = toy.run(Serial(), loaded)
    travels: list[int] = []
    gather = Federation.gather
    monkeypatch.setattr(Federation, "gather", lambda *a: travels.append(1) or gather(*a))
    for limit in (2**26, 0):
        monkeypatch.setattr(events, "TOGETHER", limit)
        for got in spmd(2, lambda comm: toy.run(comm, loaded)):
            assert toy.differences(got.state, want.state) == []
        assert bool(travels) == bool(limit)
        travels.clear()
