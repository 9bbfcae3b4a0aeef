"""Tables over seeds: numbers by hand, nothing left out in silence, four formats."""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.machine.energy import OTHER
from hpcfed.report.table import table
from hpcfed.storage import sweep as store
from hpcfed.storage.fields import flat, nested
from hpcfed.storage.record import RUN_ID
from hpcfed.storage.results import Results
from hpcfed.storage.sweep import End, Member, Sweep

LOG = {"carbon": None, "pue": 1.0}


def job(
    method: str = "fedavg", alpha: float = 0.5, seed: int = 0, data: str = "digits", **more: object
) -> dict:
    """The fields of a job that tables look at, as nested tables."""
    overrides = {name.replace("_", "."): value for name, value in more.items()}
    fields = {
        "algorithm.name": method,
        "data.name": data,
        "data.partition": "dirichlet",
        "data.alpha": alpha,
        "data.classes_per_client": 2,
        "clients": 2,
        "rounds": 3,
        "seed": seed,
        "quiet": seed > 0,
    }
    return nested(fields | overrides)


def run(
    folder: Path,
    accuracies: list[list[float]],
    up: int = 10,
    ranks: int = 1,
    seconds: float | list[float] = 2.0,
    joules: float | None = None,
    identity: str = "",
    header: dict[str, object] | None = None,
    faults: np.ndarray | None = None,
    **about: object,
) -> Path:
    """A run folder with these accuracies of two clients, round by round.

    joules: of each rank in a round; None: not measured.  identity: of the run, which copies share.
    header: further entries of the header.
    faults: [T, 2], 1 if a client failed in a round; None: not recorded.
    """
    folder.mkdir(parents=True)
    entries = {"job": job(**about), "architectures": ["mlp", "mlp"], "ended": "finished"}
    entries |= {"ranks": ranks, "hardware": {"nodes": 1}, "versions": {"hpcfed": "0.1.0"}}
    entries |= {"faults": ["", "diverged"], RUN_ID: identity} | (header or {})
    results = Results(folder, entries, {})
    for t, row in enumerate(accuracies):
        cells = {
            "clients/accuracy": np.array(row),
            "clients/up": np.array([up, 2 * up]),
            "clients/cohort": np.ones(2) if faults is None else 1 - faults[t],
            "clients/id": np.arange(2),
            "clients/architecture": np.zeros(2, dtype=np.int64),
        }
        measured = {} if joules is None else {f"ranks/joules_{OTHER}": np.full(ranks, joules)}
        if faults is not None:
            measured["clients/fault"] = faults[t]
        results.append({**cells, **measured, "rounds/seconds": np.broadcast_to(seconds, 3)[t]})
    results.finish()
    return folder


def to_end(mean: float) -> list[list[float]]:
    """Three rounds that end with this mean, 0.2 between the clients; the best round is the
    first.
    """
    return [[0.9, 0.9], [0.1, 0.3], [mean - 0.1, mean + 0.1]]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two methods, two skews, two seeds. Of fedprox one run has failed, one is not done and one not
    begun.
    """
    members = []
    for method in ("fedavg", "fedprox"):
        for alpha in (0.1, 0.5):
            for seed in (0, 1):
                name = f"{method}_{alpha}_{seed}"
                members.append(Member(name, [], flat(job(method, alpha, seed))))
    definition = Sweep(tmp_path / "sweep", [], str(tmp_path), 1, "", tuple(members))
    store.write(definition)
    for i, member in enumerate(members[:5]):
        run(definition.folder / member.name, to_end(0.4 + 0.1 * i), **about(member))
    store.note(definition, members[5].name, End(2, "hpcfed: the loss is nan", 0.0))
    run(definition.folder / members[6].name, to_end(0.9)[:2], **about(members[6]))
    return definition.folder


def about(member: Member) -> dict[str, object]:
    fields = member.fields
    return {
        "method": fields["algorithm.name"],
        "alpha": fields["data.alpha"],
        "seed": fields["seed"],
    }


def lines(text: str) -> list[str]:
    return text.splitlines()


def test_cells_are_mean_and_deviation_over_seeds_and_the_caption_says_of_what(sweep):
    head, _, columns, fedavg, *_ = lines(table([sweep]))
    assert columns.split() == ["method", "dirichlet(0.1)", "dirichlet(0.5)"]
    assert fedavg.split() == [
        "FedAvg",
        "0.4500",
        "±",
        "0.0707",
        "0.6500",
        "±",
        "0.0707",
    ]  # 0.1 / sqrt(2)
    assert head == (
        "Test accuracy of each client's model after local training in the last "
        "round, mean over clients; mean over 2 seeds ± sample "
        "standard "
        "deviation (n - 1) over seeds. *: best of its column."
    )


def test_missing_runs_are_named_in_their_cell_and_below_the_table_with_the_reason(sweep):
    text = lines(table([sweep]))
    assert text[4] == "FedProx  0.8000 * (1 of 2; 1 failed)  stopped, not started"
    failed, stopped, absent, seeds = text[6:]
    assert failed.endswith(
        "fedprox_0.1_1: failed since 1970-01-01 00:00, status 2: hpcfed: the loss is nan"
    )
    assert "fedprox_0.5_0: stopped since" in stopped and stopped.endswith(", 2 of 3 rounds")
    assert absent.endswith("fedprox_0.5_1: not started")
    assert seeds == "dirichlet(0.1): seeds differ: FedAvg 0, 1; FedProx 0"


def test_a_table_says_that_methods_have_different_seeds_and_marks_none_as_the_best(tmp_path):
    seeds = {"local": (0, 1), "fedavg": (0, 1), "fedprox": (2, 3)}
    runs = {
        (m, s): run(tmp_path / f"{m}{s}", to_end(0.5), method=m, seed=s)
        for m, numbers in seeds.items()
        for s in numbers
    }
    text = table([*runs.values()])
    assert lines(text)[-1] == "seeds differ: Local 0, 1; FedAvg 0, 1; FedProx 2, 3"
    assert "best of its column" not in text
    text = table([path for (m, _), path in runs.items() if m != "fedprox"])
    assert "seeds differ" not in text and "best of its column" in text


def test_a_table_says_which_runs_ended_early_and_after_which_round(tmp_path):
    early = {"early": "the validation loss has not fallen"}
    runs = [
        run(tmp_path / "a", to_end(0.5)[:1], header=early),
        run(tmp_path / "b", to_end(0.5)[:2], header=early, seed=1),
        run(tmp_path / "c", to_end(0.5), method="local"),
    ]
    a, b, _ = runs
    assert lines(table(runs))[-2] == f"ended early: {a} after 1, {b} after 2 of 3 rounds"
    assert "0.5500 (1 of 2; 1 evaluated in only 1 round)" in table(runs, value="last:2")


def test_a_table_counts_the_reports_of_clients_that_failed(tmp_path):
    faults = np.array([[1, 1], [1, 0], [1, 0]])
    failed, fine = (
        run(tmp_path / "a", to_end(0.5), faults=faults),
        run(tmp_path / "b", to_end(0.5), method="local"),
    )
    assert (
        lines(table([failed, fine]))[-1] == f"reports of clients failed: {failed} 4 of 6 (diverged)"
    )
    assert "failed" not in table([fine])


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("accuracy", "0.6000"),
        ("best", "0.9000"),
        ("last:2", "0.4000"),
        ("up", "15 B"),
        ("seconds", "2 s"),
        ("final", "not recorded"),
        ("last:4", "evaluated in only 3 rounds"),
    ],
)
def test_a_table_shows_the_number_that_is_asked_for(tmp_path, value, cell):
    assert (
        lines(table([run(tmp_path / "a", to_end(0.6))], value=value))[-1]
        .removeprefix("FedAvg")
        .strip()
        == cell
    )


def test_accuracies_may_be_in_percent_and_deviate_over_clients_as_in_the_papers(tmp_path):
    text = table([run(tmp_path / "a", to_end(0.6))], deviation="clients", percent=True)
    assert "60.00 ± 10.00" in text
    assert "in percent; one seed ± standard deviation over clients." in text


def test_a_caption_speaks_of_deviations_only_if_a_cell_has_one(tmp_path):
    runs = [
        run(tmp_path / "a", to_end(0.6)),
        run(tmp_path / "b", to_end(0.6)[:1], seed=1, header={"ended": ""}),
    ]
    assert "±" not in table(runs)  # one of the two seeds is finished
    with pytest.raises(ConfigError, match="no run has a deviation over clients of worst; leave"):
        table(runs, value="worst", deviation="clients")


def test_of_bytes_and_seconds_less_is_better(tmp_path):
    methods = ("fedavg", "fedprox", "local")
    runs = [
        run(tmp_path / m, to_end(0.5), method=m, up=20 if m == "fedprox" else 10) for m in methods
    ]
    assert lines(table(runs, value="up"))[3:] == [
        "Local    15 B *",
        "FedAvg   15 B *",
        "FedProx  30 B",
    ]
    assert "best" not in table(runs[:1], value="up")  # a single one is none


def test_columns_are_fields_that_differ_besides_method_and_seed(tmp_path):
    about = [(d, n) for d in ("digits", "cifar10") for n in (20, 100)]
    rates = {"fedavg": 0.1, "fedprox": 1.0}
    runs = [
        run(tmp_path / f"{d}{n}{m}", to_end(0.5), data=d, clients=n, method=m, local_lr=rates[m])
        for d, n in about
        for m in rates
    ]
    sets, clients, *_ = lines(table(runs))[2:]
    assert sets.split() == ["digits", "cifar10"]
    assert clients.split() == ["method", *["20", "clients", "100", "clients"] * 2]
    assert "lr" not in clients  # a method's own, not a column


def test_a_methods_own_parameters_make_rows(tmp_path):
    runs = [
        run(tmp_path / f"p{mu}", to_end(0.5), method="fedprox", algorithm_mu=mu)
        for mu in (0.1, 1.0)
    ]
    text = table([*runs, run(tmp_path / "a", to_end(0.5))])
    assert [line.split("  ")[0] for line in lines(text)[3:]] == [
        "FedAvg",
        "FedProx, mu=0.1",
        "FedProx, mu=1",
    ]


def test_other_data_are_another_column_even_if_each_method_has_its_own(tmp_path):
    run(tmp_path / "a", to_end(0.5)), run(tmp_path / "b", to_end(0.7), method="local", data="mnist")
    text = table([tmp_path / "a", tmp_path / "b"])
    assert "digits" in text and "mnist" in text and text.count("no run") == 2 and "*" not in text


def test_a_table_lists_other_differences_between_the_methods_of_a_column(tmp_path):
    short = run(tmp_path / "a", to_end(0.5)[:1], method="local", rounds=1, local_lr=0.0005)
    text = lines(table([short, run(tmp_path / "b", to_end(0.5), local_lr=0.1)]))
    assert text[-1] == "also differ: rounds 1/3, local.lr 0.0005/0.1"
    alike = [
        run(tmp_path / f"{data}{method}", to_end(0.5), data=data, method=method, local_lr=lr)
        for data, lr in (("digits", 0.1), ("mnist", 0.2))
        for method in ("local", "fedavg")
    ]
    assert "differ" not in table(alike)  # a data set's own rate is the same for its methods


def test_runs_of_two_spreads_of_a_partition_with_two_skews_are_not_averaged(tmp_path):
    for seed, spread in ((0, 1), (1, 2)):
        more = {"data_partition": "distribution", "data_spread": spread}
        run(tmp_path / "runs" / str(seed), to_end(0.5), seed=seed, **more)
    assert lines(table([tmp_path / "runs"]))[2].split() == ["method", "spread=1", "spread=2"]


def test_runs_that_adapt_their_models_otherwise_are_not_averaged(tmp_path):
    for seed, epochs in ((0, 1), (1, 20)):
        more = {"adapt_how": "head", "adapt_epochs": epochs, "adapt_save": epochs == 1}
        run(tmp_path / "runs" / str(seed), to_end(0.5), seed=seed, **more)
    assert lines(table([tmp_path / "runs"]))[2].split() == ["method", "epochs=1", "epochs=20"]


def test_saving_adapted_models_changes_no_number(tmp_path):
    for seed, save in ((0, False), (1, True)):
        run(tmp_path / "runs" / str(seed), to_end(0.5), seed=seed, adapt_save=save)
    assert "mean over 2 seeds" in table([tmp_path / "runs"])


def test_fields_determined_by_rows_or_columns_are_not_columns(tmp_path):
    """As in FedClassAvg's table 3: one form of KT-pFL needs public data, and its rates depend on
    form and data.
    """
    rates = {
        ("digits", "weights"): 0.005,
        ("digits", "predictions"): 0.01,
        ("cifar10", "weights"): 0.01,
        ("cifar10", "predictions"): 0.02,
    }
    runs = [
        run(
            tmp_path / f"{data}{share}",
            to_end(0.5),
            data=data,
            method="ktpfl",
            algorithm_share=share,
            algorithm_rate=rate,
            data_public=3000 * (share == "predictions"),
        )
        for (data, share), rate in rates.items()
    ]
    heads, *rows, _, note = lines(table(runs))[2:]
    assert heads.split() == ["method", "digits", "cifar10"]
    assert note == "also differ: data.public 0/3000"
    assert [row.split("  ")[0] for row in rows] == [
        "KT-pFL, share=weights",
        "KT-pFL, share=predictions",
    ]


def test_parameters_that_a_column_decides_make_no_rows(tmp_path):
    runs = [
        run(
            tmp_path / f"{i}",
            to_end(0.5),
            method="fedprox",
            clients=2 + i,
            algorithm_a=i,
            algorithm_b=i % 2,
        )
        for i in range(4)
    ]
    for text in (table(runs), table(runs, columns="clients")):
        assert [row.split("  ")[0] for row in lines(text)[3:]] == ["FedProx"]


def test_runs_that_differ_are_never_averaged(sweep):
    with pytest.raises(
        ConfigError,
        match=r"differ in data.partition: dirichlet\(0.1\) and dirichlet\(0.5\); add it",
    ):
        table([sweep], columns="clients")


def test_the_same_run_counts_once_and_two_of_one_seed_are_refused(sweep, tmp_path):
    assert table([sweep, sweep / "fedavg_0.1_0"]) == table([sweep])
    again = run(tmp_path / "again", to_end(0.5), alpha=0.1)
    with pytest.raises(ConfigError, match=r"2 runs .* same seed: \S*fedavg_0.1_0, \S*again; give"):
        table([sweep, again])
    with pytest.raises(ConfigError, match=r"copies of one run: \S*/a, \S*/b; give one of them$"):
        table([run(tmp_path / name, to_end(0.5), identity="x", seed=2) for name in "ab"] + [again])


def test_runs_that_differ_only_in_ranks_are_columns_of_seconds(tmp_path):
    times = {1: 4.0, 2: 2.0, 8: 1.0}
    for ranks, seconds in times.items():
        run(tmp_path / "runs" / str(ranks), to_end(0.5), ranks=ranks, seconds=seconds)
    text = lines(table([tmp_path / "runs"], value="seconds"))
    assert text[2].split() == ["method", "ranks=1", "ranks=2", "ranks=8"]
    assert text[3].split() == ["FedAvg", "4", "s", "2", "s", "1", "s"]
    assert "ranks=8" in table([tmp_path / "runs"], rows="ranks", columns="nodes,version")
    with pytest.raises(ConfigError, match="or tell them apart by --columns ranks"):
        table([tmp_path / "runs"])


def test_methods_on_other_numbers_of_ranks_are_not_in_one_column_of_seconds(tmp_path):
    runs = [
        run(tmp_path / m, to_end(0.5), method=m, ranks=ranks, joules=1.0, log=LOG)
        for m, ranks in (("local", 1), ("fedavg", 4))
    ]
    for value in ("seconds", "joules"):
        text = table(runs, value=value)
        assert lines(text)[2].split() == ["method", "ranks=1", "ranks=4"] and "*" not in text
        assert lines(table(runs, value=value, columns="clients"))[-1] == "also differ: ranks 1/4"
    assert "ranks" not in table(runs)


def test_seconds_are_of_the_rounds_on_the_ranks_of_the_last_start_and_a_note_says_so(tmp_path):
    before = {"history": [{"rounds": 2, "ranks": 1, "hardware": {"nodes": 1}}]}
    one = run(tmp_path / "a", to_end(0.5), ranks=4, seconds=[8.0, 8.0, 2.0], header=before)
    text = lines(table([one], value="seconds"))
    note = f"{one}: 2 of its 3 rounds were done on other ranks, before it was resumed; left out"
    assert text[3].split() == ["FedAvg", "2", "s"] and text[-1] == note


def test_the_energy_of_runs_that_differ_only_in_ranks_has_columns_too(tmp_path):
    for ranks, joules in {1: 4.0, 2: 5.0}.items():
        folder = tmp_path / "runs" / str(ranks)
        run(folder, to_end(0.5), ranks=ranks, joules=joules, log=LOG)
    text = lines(table([tmp_path / "runs"], value="joules"))
    assert text[2].split() == ["method", "ranks=1", "ranks=2"]
    assert text[3].split() == ["FedAvg", "12", "J", "30", "J"]  # of three rounds, on all ranks


def test_any_fields_may_be_rows_and_columns(sweep):
    text = lines(table([sweep], rows="data.alpha", columns="algorithm.name"))
    assert text[2].split() == ["alpha", "FedAvg", "FedProx"] and text[3].startswith(
        "alpha=0.1  0.4500 ± 0.0707"
    )


def test_heads_of_several_columns_span_them_in_latex(tmp_path):
    runs = [
        run(tmp_path / f"{d}{n}", to_end(0.5), data=d, clients=n)
        for d in ("my_set", "cifar10")
        for n in (20, 100)
    ]
    text = lines(table(runs, format="latex"))
    assert r" & \multicolumn{2}{c}{my\_set} & \multicolumn{2}{c}{cifar10} \\" in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in text
    assert r"method & 20 clients & 100 clients & 20 clients & 100 clients \\" in text


def test_csv_has_the_numbers_in_full_and_a_line_a_cell(sweep):
    text = lines(table([sweep], format="csv"))
    assert text[0] == "algorithm.name,data.partition,mean,deviation,seeds,runs,best,note"
    assert text[3] == "FedProx,dirichlet(0.1),0.8,,1,2,1,1 of 2; 1 failed"
    assert text[4] == 'FedProx,dirichlet(0.5),,,0,2,0,"stopped, not started"'


def test_runs_that_cannot_be_shown_are_one_message(sweep, tmp_path):
    for wrong, message in [
        ({"value": "acuracy"}, "did you mean 'accuracy'"),
        ({"rows": "data.nam"}, "no field"),
        ({"out": Path(__file__) / "t"}, "cannot write the table: Not a directory"),
    ]:
        with pytest.raises(ConfigError, match=message):
            table([sweep], **wrong)
    with pytest.raises(CheckpointError, match="absent"):
        table([tmp_path / "absent"])


def test_tables_name_own_data_by_file_and_the_distinguishing_part_of_the_path(
    tmp_path,
):
    places = ["/a/left/x.npz", "/a/right/x.npz", "/b/y.npz"]
    runs = [run(tmp_path / str(i), to_end(0.5), data=name) for i, name in enumerate(places)]
    assert lines(table(runs))[2].split() == ["method", "left/x.npz", "right/x.npz", "y.npz"]
    named = {"data_label": "birds"}
    labelled = [run(tmp_path / f"l{i}", to_end(0.5), data=places[i], **named) for i in (0, 2)]
    assert lines(table(labelled))[2].split() == ["method", "birds", "(x.npz)", "birds", "(y.npz)"]
