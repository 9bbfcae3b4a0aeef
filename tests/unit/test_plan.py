"""`hpcfed plan`: costs from a short run's result file, the model of the cluster by hand, the
command, and one message for what it cannot plan.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcfed import cli
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.launch.plan import command, precisions
from hpcfed.launch.plan.command import best, efficiencies, numbers
from hpcfed.launch.plan.costs import costs, differing_fields
from hpcfed.launch.plan.predict import (
    CELL,
    POLL,
    ROW,
    SENT,
    TOTAL,
    VALUE,
    Cluster,
    Demand,
    Network,
    Prediction,
    predict,
)
from hpcfed.machine.memory_budget import uploads
from hpcfed.models import precision as models_precision
from hpcfed.storage.results import Results

FIELDS = [
    "--algorithm.name",
    "fedavg",
    "--models.mix",
    "mlp",
    "--clients",
    "2",
    "--data.train_limit",
    "40",
    "--data.partition",
    "iid",
    "--local.epochs",
    "2",
    "--rounds",
    "100",
]


def trial(
    folder: Path,
    rows: int = 3,
    joules: float | None = None,
    sizes: tuple[int, int] = (10, 20),
    examples: tuple[int, int] = (20, 40),
    accuracy: tuple[float, float] = (0.5, 0.5),
    **header: Any,
) -> Path:
    """Client 0 has 10 training and 4 test examples and takes 1 s a round on rank 0, client 1 twice
    all that on rank 1.

    The first round is slower. Both ranks evaluate for 0.8 s in all, and spend 0.3 s beside what is
    recorded.

    sizes: training examples of both.
    examples, accuracy: of both in each round; 0 if a client did not train, nan if it was not
    evaluated.
    joules: of a round after the first, of the packages that rank 0 reads; None: not recorded.
    """
    counted = {} if joules is None else {"ranks/joules_train": np.array([joules, np.nan])}
    plain = {
        "job": load(FIELDS, environ={}).plain(),
        "ranks": 2,
        "placement": [0, 1],
        "architectures": ["mlp", "mlp"],
        "classes": ["a", "b"],
        "hardware": {"device": "cpu", "cores": 2, "nodes": 1},
    }
    arrays = {"train_sizes": np.array(sizes), "test_sizes": np.array([4, 8])}
    results = Results(folder, {**plain, **header}, arrays)
    for t in range(rows):
        slow = 5.0 if t == 0 else 1.0
        results.append(
            {
                "clients/seconds": slow * np.array([1.0, 2.0]),
                "clients/examples": np.array(examples),
                "clients/accuracy": np.array(accuracy),
                "rounds/seconds": np.float64(slow * 3.4),
                "ranks/train": slow * np.array([1.0, 2.0]),
                "ranks/evaluate": np.array([0.3, 0.5]),
                "ranks/server": np.array([0.1, 0.0]),
                "ranks/communicate": np.array([0.5, 0.5]),
                "ranks/wait": np.array([1.2, 0.1]),
                "ranks/peak_bytes": np.array([10**8, 2 * 10**8]),
                "ranks/peak_device_bytes": np.array([0, 0]),
                **{name: slow * values for name, values in counted.items()},
            }
        )
    folder.mkdir()
    results.finish()
    return folder


def four_clients(**changes: object) -> Demand:
    """Clients of 1, 2, 3 and 4 seconds, in one round of four, which send nothing."""
    plain = {
        "architectures": ("a",) * 4,
        "size": {"a": 100},
        "stateless": False,
        "train": np.array([1.0, 2.0, 3.0, 4.0]),
        "evaluate": np.zeros(4),
        "rest": 0.0,
        "server": 0.0,
        "cohorts": [[[0], [1], [2], [3]]],
        "evaluated": None,
        "values": 0,
        "uploads": 0,
        "upload_memory": np.zeros(4),
        "rounds": 10,
        "due": 1.0,
    }
    return Demand(**{**plain, **changes})


FREE = Network(0.0, 1e30)


def message(capsys: pytest.CaptureFixture, *words: str) -> str:
    """Return the message of a refused plan."""
    assert cli.main(["plan", *words]) == 2
    return capsys.readouterr().err


def test_costs_are_medians_over_clients_and_rounds_but_the_first(tmp_path: Path):
    measured = costs(trial(tmp_path / "run"), stateless=True)
    assert measured.train == {"mlp": 1 / 20}
    assert measured.evaluate == pytest.approx(0.8 / ((4 + 8) / 20))  # over training as many
    assert measured.rest == pytest.approx(0.3) and measured.server == 0.1  # one client a rank
    assert (measured.peak, measured.placed, measured.cores) == (2e8, [["mlp"], ["mlp"]], 2)
    assert measured.trained == {"mlp": 1.0}  # on each of two ranks


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"ranks": 3, "placement": [0, 2]},
            "the 3 ranks of .* shared 2 cores per node; make a trial of at most one thread",
        ),
        ({"placement": []}, "too many clients"),
        (
            {"job": {"run": {"threads": 1, "speeds": [1.0, 0.5]}}},
            "had different speeds; make a trial on equal ranks",
        ),
    ],
)
def test_a_trial_whose_ranks_did_not_compute_alone_is_refused(
    tmp_path: Path, changed: dict[str, Any], words: str
):
    with pytest.raises(ConfigError, match=words):
        costs(trial(tmp_path / "run", **changed), stateless=True)


def test_a_trial_without_rounds_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no client has been trained; let it make a few rounds"):
        costs(trial(tmp_path / "run", rows=0), stateless=True)


def test_an_architecture_that_was_not_tried_is_refused(tmp_path: Path):
    with pytest.raises(
        ConfigError, match="the short run trained mlp, but this job has cnn; make one of this job"
    ):
        costs(trial(tmp_path / "run"), stateless=True).of("cnn")


def test_differing_fields_that_affect_costs_are_named(tmp_path: Path):
    measured = costs(trial(tmp_path / "run"), stateless=True)
    job = load([*FIELDS, "--local.batch", "7", "--seed", "3"], environ={}).plain()
    assert differing_fields(measured, job) == ["local.batch"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("compression.by", "topk"),
        ("privacy.by", "client"),
        ("secure.by", "masks"),
        ("attack.by", "sign-flip"),
        ("defence.by", "median"),
        ("evaluate.metrics", ["f1"]),
        ("evaluate.clients", 1),
        ("evaluate.validation", 0.4),
    ],
)
def test_another_treatment_of_messages_and_further_metrics_affect_costs(
    tmp_path: Path, field: str, value: object
):
    measured = costs(trial(tmp_path / "run"), stateless=True)
    job = load(FIELDS, environ={}).plain()
    section, name = field.split(".")
    job[section][name] = value
    assert differing_fields(measured, job) == [field if section == "evaluate" else section]


def test_the_cost_of_an_evaluation_is_of_the_clients_that_the_short_run_evaluated(tmp_path: Path):
    job = load([*FIELDS, "--evaluate.clients", "1"], environ={}).plain()
    folder = tmp_path / "one"  # client 0 is evaluated with the shared model, and client 1 trains
    one = trial(folder, job=job, examples=(0, 40), accuracy=(0.5, np.nan))
    assert costs(one, stateless=True).evaluate == pytest.approx(0.8 / (4 / 20))
    cohort = load([*FIELDS, "--evaluate.clients", "cohort"], environ={}).plain()
    trained = trial(tmp_path / "cohort", job=cohort, examples=(0, 40))  # client 0 was before
    for run, stateless in ((trained, True), (trained, False)):
        assert costs(run, stateless).evaluate == pytest.approx(0.8 / (8 / 20))


def test_a_number_of_evaluated_clients_is_that_of_the_job(tmp_path: Path, capsys):
    run = trial(tmp_path / "run")
    one, two, everyone = (
        planned(run, capsys, "--evaluate.clients", n)["clusters"][0]["parts"]["evaluate"]
        for n in ("1", "2", "all")
    )
    assert 0 < one < two == everyone


def test_a_list_of_nodes_may_double():
    assert numbers("1,2,4,...,32") == [1, 2, 4, 8, 16, 32] and numbers("3, ..., 20") == [
        3,
        6,
        12,
        20,
    ]
    assert numbers("8,1") == [1, 8]
    for wrong in ("", "0", "two", "1,...", "...,8", "1,-2"):
        with pytest.raises(
            ConfigError, match="is not a number of nodes; give 1,2,4 or 1,2,4,...,1024"
        ):
            numbers(wrong)


def test_a_round_on_one_rank_is_the_sum_of_its_clients():
    demand = four_clients(evaluate=np.ones(4), due=0.5, rest=0.25, server=2.0)
    one = predict(demand, Cluster(1, 1, 1, FREE))
    parts = {"train": 10.0, "evaluate": 2.0, "rest": 1.0, "wait": 0.0, "server": 2.0}
    assert one.parts == parts | {"communicate": 0.0}
    assert one.seconds == 15.0 and one.hours == 150 / 3600 and one.node_hours == one.hours


def test_drawn_clients_are_evaluated_each_round_if_clients_keep_no_model_and_else_once_trained():
    cohorts, drawn = [[[0], [1]]], np.array([1, 2, 3])
    for stateless, seconds in ((True, 20 + 30 + 40), (False, 20)):
        demand = four_clients(
            evaluate=np.array([10.0, 20.0, 30.0, 40.0]),
            evaluated=drawn,
            cohorts=cohorts,
            stateless=stateless,
        )
        assert predict(demand, Cluster(1, 1, 1, FREE)).parts["evaluate"] == seconds


def test_the_slowest_rank_makes_the_round():
    two = predict(four_clients(train=np.array([4.0, 1.0, 1.0, 0.0])), Cluster(2, 1, 1, FREE))
    assert two.parts["train"] == 3.0 and two.parts["wait"] == 1.0  # 4 and 2
    assert two.node_hours == 2 * two.hours
    uneven = Cluster(2, 1, 1, FREE, speeds=(3.0, 1.0))
    parts = predict(four_clients(train=np.full(4, 3.0)), uneven).parts
    assert parts["train"] + parts["wait"] == 3.0  # three clients at 1 s, and one at 3 s


def test_ranks_beyond_the_cores_or_on_the_same_gpu_gain_nothing():
    for cluster in (Cluster(1, 4, 1, FREE), Cluster(1, 4, 64, FREE, gpus=1)):
        assert predict(four_clients(), cluster).parts["train"] == 10.0
    assert predict(four_clients(), Cluster(1, 4, 4, FREE)).parts["train"] == 2.5


def test_a_gpu_is_done_when_all_its_ranks_are_and_as_many_as_were_measured_work_at_once():
    def seconds(each: int, gpus: int, at_once: int = 1) -> float:
        cluster = Cluster(1, each, 64, FREE, gpus=gpus, at_once=at_once)
        parts = predict(four_clients(), cluster).parts  # clients of 4, 3, 2 and 1 s
        return parts["train"] + parts["wait"]

    assert seconds(4, gpus=1) == 10.0  # one after the other, of unequal length
    assert seconds(4, gpus=2) == 6.0  # ranks 0 and 2, with the clients of 4 and 2 s, share one
    assert seconds(4, gpus=1, at_once=2) == 5.0
    assert seconds(4, gpus=1, at_once=4) == seconds(4, gpus=4) == 4.0  # the slowest rank


def test_memory_is_that_of_the_fullest_rank_and_gpu():
    two = predict(four_clients(), Cluster(1, 2, 2, FREE, gpus=1), peak=5.0, gpu=7.0)
    models = 4 * 100 + 2 * 100  # a module with its gradient and moments, two clients
    assert two.memory == 5 + models and two.gpu == 2 * (7 + models)


def test_uploads_of_a_round_are_in_memory_until_it_ends_those_of_stateless_clients_too():
    demand = four_clients(stateless=True, upload_memory=np.array([1000.0, 1000.0, 1000.0, 0.0]))
    models, each = 4 * 100, uploads(1000)  # a module with its gradient and moments
    one, two, four = (predict(demand, Cluster(n, 1, 1, FREE), peak=5.0) for n in (1, 2, 4))
    assert one.uploads == pytest.approx(3 * each) and one.memory == 5 + models + one.uploads
    assert two.uploads == pytest.approx(2 * each) and four.uploads == each
    few = four_clients(
        stateless=True, upload_memory=demand.upload_memory, cohorts=[[[3]], [[0], [1]]]
    )
    assert predict(few, Cluster(1, 1, 1, FREE)).uploads == pytest.approx(2 * each)  # of one round


def test_uploads_of_a_rank_are_those_of_its_own_clients_that_take_part():
    demand = four_clients(upload_memory=np.full(4, 1000.0), cohorts=[[[0], [3]], [[1], [2]]])
    two = predict(demand, Cluster(2, 1, 1, FREE))  # clients 0 and 3 are on the same rank
    assert two.uploads == pytest.approx(2 * uploads(1000))


def test_a_plan_adds_the_uploads_of_more_clients_and_warns_if_they_are_most_of_the_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    run = trial(tmp_path / "run")  # 200 MB a rank, with one client that trains
    words = ("--models.d", "16384", "--data.name", "digits")
    two, eighty = (
        planned(run, capsys, *words, "--clients", n, "--data.train_limit", "160")
        for n in ("2", "80")
    )
    each = two["clusters"][0]["uploads"] / 2
    assert 14e6 < each < 16e6  # a model of 14 MB
    assert eighty["clusters"][0]["uploads"] == pytest.approx(80 * each)
    added = eighty["clusters"][0]["memory"] - two["clusters"][0]["memory"]
    assert added == pytest.approx(78 * each)
    assert two["clusters"][0]["memory"] == pytest.approx(2e8 + each)
    assert not any("uploads" in line for line in two["warnings"])
    [warning] = [line for line in eighty["warnings"] if "uploads" in line]
    assert "run.resident does not limit them" in warning and "lower participation" in warning


def test_stateless_clients_are_placed_again_in_each_round():
    cohorts = [[[0], [1]], [[2], [3]]]
    stay, move = (
        predict(
            four_clients(train=np.ones(4), cohorts=cohorts, stateless=stateless),
            Cluster(2, 1, 1, FREE),
        ).parts
        for stateless in (False, True)
    )
    assert move["wait"] == 0.0 and move["train"] == stay["train"] == 1.0


def test_an_exact_sum_takes_arithmetic_by_value_and_crosses_the_network_twice():
    demand = four_clients(values=1000)
    alone = predict(demand, Cluster(1, 1, 1, FREE)).parts["communicate"]
    assert alone == pytest.approx(1000 * (4 * ROW + TOTAL))
    two = predict(demand, Cluster(2, 1, 1, Network(0.5, 1e6))).parts["communicate"]
    nbytes = 1000 * VALUE + 4 * CELL
    work = 1000 * (2 * ROW + TOTAL + SENT / 2)
    assert two == pytest.approx(work + nbytes / 2 / 1e6 + 12 * 0.5 + 4 * POLL)


@pytest.mark.parametrize(
    ("ranks", "uploads", "measured"),
    [(2, 1, 0.0596), (2, 10, 0.2192), (4, 1, 0.1104), (4, 5, 0.2391), (8, 3, 0.4039)],
)
def test_predicted_seconds_of_exact_sums_are_those_measured_on_two_cores(ranks, uploads, measured):
    K = ranks * uploads
    demand = four_clients(
        architectures=("a",) * K,
        train=np.ones(K),
        evaluate=np.zeros(K),
        upload_memory=np.zeros(K),
        values=11_181_642,
        cohorts=[[[k] for k in range(K)]],
    )
    seconds = predict(demand, Cluster(1, ranks, 2, FREE)).parts["communicate"]
    assert measured / 1.2 < seconds < 1.2 * measured  # benchmarks/results/bench/sums.json


def test_more_nodes_never_take_longer_if_the_network_costs_nothing():
    clients = four_clients(
        architectures=("a",) * 64,
        train=np.linspace(1, 2, 64),
        evaluate=np.zeros(64),
        upload_memory=np.zeros(64),
        cohorts=[[[k] for k in range(64)]],
    )
    parts = [predict(clients, Cluster(2**i, 1, 1, FREE)).parts for i in range(8)]
    computing = [part["train"] + part["wait"] for part in parts]
    assert computing == sorted(computing, reverse=True) and computing[-1] == 2.0


def test_the_best_cluster_is_the_largest_that_pays():
    def cluster(nodes: int, seconds: float) -> Prediction:
        return Prediction(nodes, nodes, seconds, {}, 0.0, 0.0, 0.0)

    values = efficiencies([cluster(1, 8.0), cluster(2, 4.0), cluster(4, 3.0), cluster(8, 2.9)])
    assert [p.efficiency for p in values] == [
        1,
        1,
        pytest.approx(2 / 3),
        pytest.approx(8 / 8 / 2.9),
    ]
    assert best(values).nodes == 4
    assert best(efficiencies([cluster(1, 1.0), cluster(2, 1.0)])).nodes == 1  # no faster


def test_the_command_plans_from_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = str(trial(tmp_path / "run"))
    assert (
        cli.main(
            ["plan", *FIELDS, "--costs", run, "--nodes", "1,2,4", "--ranks-per-node", "1", "--json"]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    one, two, four = report["clusters"]
    assert one["parts"]["train"] == pytest.approx(40 * 2 / 20)  # 40 examples, twice
    assert two["parts"]["train"] == pytest.approx(one["parts"]["train"] / 2)
    assert four["seconds"] >= two["seconds"] and report["best"] == report["fastest"] == 2
    assert report["warnings"] == ["only 2 groups of clients train in a round: more ranks stay idle"]
    assert (
        cli.main(["plan", *FIELDS, "--costs", run, "--nodes", "1,2", "--ranks-per-node", "1"]) == 0
    )
    text = capsys.readouterr().out
    assert "of at least 50%: 2; the fastest: 2" in text and f"measured, in {run} on cpu" in text
    assert "assumed" not in text and "may use 2 physical cores" in text


def test_a_node_has_as_many_ranks_as_the_short_run_could_use_cores(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    hardware = {"device": "cpu", "cores": 64, "nodes": 1}
    words = ["plan", *FIELDS, "--costs", str(trial(tmp_path / "run", hardware=hardware))]
    ranks = []
    for more in ([], ["--run.threads", "4"], ["--cores-per-node", "8"]):
        assert cli.main([*words, "--nodes", "1", "--json", *more]) == 0
        ranks.append(json.loads(capsys.readouterr().out)["clusters"][0]["ranks"])
    assert ranks == [64, 16, 8]


def test_a_method_s_own_passes_are_as_many_as_in_the_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    more = trial(tmp_path / "more", sizes=(4, 8))  # passed over five times in a round, not twice
    assert costs(more, stateless=True).passes == pytest.approx(5 / 2)
    steps = load(FIELDS, environ={}).plain()
    steps["local"]["steps"] = 1
    of_steps = trial(tmp_path / "steps", sizes=(4, 40), job=steps)  # of batches of 16
    assert costs(of_steps, stateless=True).passes == pytest.approx((20 + 40) / (4 + 16))
    assert planned(more, capsys)["clusters"][0]["parts"]["train"] == pytest.approx(40 * 5 / 20)


def test_energy_is_the_power_of_a_node_times_node_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    """340 J in a round of 3.4 s are 100 W."""
    assert costs(trial(tmp_path / "trial", joules=340.0), stateless=True).watts == pytest.approx(
        100
    )
    words = ["plan", *FIELDS, "--costs", str(tmp_path / "trial"), "--nodes", "1,2"]
    words += ["--log.energy", "true", "--log.carbon", "400", "--log.pue", "1.2"]
    assert cli.main([*words, "--json"]) == 0
    for one in json.loads(capsys.readouterr().out)["clusters"]:
        kwh = one["node_hours"] * 0.1
        assert one["joules"] == pytest.approx(3.6e6 * kwh)
        assert one["kg_co2e"] == pytest.approx(kwh * 1.2 * 0.4)
    assert cli.main(words) == 0
    page = capsys.readouterr().out
    assert "kWh" in page and "kg CO2e" in page and "100 W a node" in page


def test_speeds_of_nodes_are_those_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture):
    run, common = str(trial(tmp_path / "run")), ["--nodes", "2", "--ranks-per-node", "1", "--json"]
    seconds = []
    for speeds in ("1,1", "2,2", "2,1"):
        assert cli.main(["plan", *FIELDS, "--run.speeds", speeds, "--costs", run, *common]) == 0
        seconds.append(json.loads(capsys.readouterr().out)["clusters"][0]["seconds"])
    assert (
        seconds[1] < seconds[2] == pytest.approx(seconds[0], rel=1e-3)
    )  # both clients on the fast node, or one


def test_on_gpus_each_rank_has_its_own_unless_there_are_more_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    hardware = {"device": "a GPU", "cores": 2, "nodes": 1}
    run = str(trial(tmp_path / "run", hardware=hardware))
    together = str(trial(tmp_path / "together", hardware=hardware | {"ranks_per_gpu": 2}))
    seconds, basis = [], []
    for trial_of, ranks in ((run, "2"), (together, "4"), (run, "4")):
        words = [
            "--costs",
            trial_of,
            "--gpus-per-node",
            "2",
            "--ranks-per-node",
            ranks,
            "--clients",
            "4",
            "--json",
        ]
        assert cli.main(["plan", *FIELDS, *words]) == 0
        report = json.loads(capsys.readouterr().out)
        seconds, basis = seconds + report["clusters"], report["basis"]
    two, at_once, four = seconds
    assert f"measured, in {run} on a GPU" in basis[0]
    assert any(line.endswith("messages from --latency and --bandwidth") for line in basis)
    assert any(line.startswith("assumed: one rank a GPU") for line in basis)
    modules = two["gpu"] - two["uploads"]
    assert modules > 0 and four["uploads"] == two["uploads"] / 2 > 0
    # two ranks, each with the modules and the uploads of its clients
    assert four["gpu"] == pytest.approx(2 * (modules + four["uploads"]))
    assert four["parts"]["train"] == pytest.approx(
        two["parts"]["train"]
    )  # they share the GPU's time
    assert at_once["parts"]["train"] == pytest.approx(four["parts"]["train"] / 2)
    assert "--gpus-per-node is 0" in message(capsys, *FIELDS, "--costs", run)


def test_without_costs_the_message_says_how_to_get_them(capsys: pytest.CaptureFixture):
    text = message(capsys, *FIELDS, "--data.name", "my data.npz")
    assert "--data.name 'my data.npz' --costs runs/trial" in text  # as a shell takes it
    twice = message(capsys, *FIELDS, "--rounds", "4", "--out=runs/x")
    assert twice.splitlines()[1].count("--rounds") == 1 and "runs/x" not in twice.splitlines()[1]
    assert "no measured costs; make a short run" in text and "--rounds 3 --out runs/trial" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nodes", "none"], "'none' is not a number of nodes"),
        (["--latency", "-1"], "--latency -1 is at least 0"),
        (["--bandwidth", "0"], "--bandwidth 0 above 0"),
        (["--latency", "nan"], "--latency nan is at least 0"),
        (["--latency", "inf"], "give finite numbers"),
        (["--bandwidth", "nan"], "--bandwidth nan above 0"),
        (["--bandwidth", "inf"], "give finite numbers"),
        (["--gpus-per-node", "-1"], "--gpus-per-node -1: give at least 0"),
        (["--ranks-per-node", "0"], "--ranks-per-node 0: give at least 1"),
        (["--gpus-per-node", "4"], "the short run computed on cpu, but --gpus-per-node is 4"),
        (["--nodes", "1000000"], "the model goes up to 100000"),
        (["--algorithm.name", "fedasync"], "fedasync has no rounds"),
        (["--clientz", "3"], "no field 'clientz'"),
    ],
)
def test_a_wrong_plan_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture, words: list[str], why: str
):
    text = message(capsys, *FIELDS, "--costs", str(trial(tmp_path / "run")), *words)
    assert why in text and "Traceback" not in text


def test_a_folder_without_results_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert "results.h5" in message(capsys, *FIELDS, "--costs", str(tmp_path))


def planned(run: Path, capsys: pytest.CaptureFixture, *words: str) -> Any:
    """Return what a plan for one node with one rank says, as JSON."""
    common = ["--costs", str(run), "--nodes", "1", "--ranks-per-node", "1", "--json"]
    assert cli.main(["plan", *FIELDS, *words, *common]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("of_trial", ["float32", "bf16"])
@pytest.mark.parametrize("of_job", ["float32", "bf16"])
def test_a_plan_knows_the_seconds_of_training_in_both_precisions(
    of_trial: str,
    of_job: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(command, "measure_ratios", lambda fed: {"mlp": 2.0})
    monkeypatch.setattr(precisions, "find_bfloat16", lambda: "avx512_bf16")
    job = load([*FIELDS, "--run.precision", of_trial], environ={}).plain()
    report = planned(trial(tmp_path / "run", job=job), capsys, "--run.precision", of_job)
    measured, other = 40 * 2 / 20, ({"float32", "bf16"} - {of_job}).pop()
    seconds = {"float32": 2.0, "bf16": 1.0}
    train = report["clusters"][0]["parts"]["train"]
    assert train == pytest.approx(measured * seconds[of_job] / seconds[of_trial])
    [different] = report["other_precisions"][other]
    assert different["parts"]["train"] == pytest.approx(
        measured * seconds[other] / seconds[of_trial]
    )
    assert different["parts"]["evaluate"] == report["clusters"][0]["parts"]["evaluate"]
    assert not any("run.precision" in line for line in report["warnings"])
    assert "float32 as with run.precision = 'bf16': mlp 2.00" in report["basis"][-1]


def test_a_plan_for_people_has_a_column_of_the_other_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "measure_ratios", lambda fed: {"mlp": 2.0})
    run = str(trial(tmp_path / "run"))
    words = [*FIELDS, "--run.precision", "bf16", "--costs", run, "--nodes", "1"]
    report = command.plan(words[:-4], Path(run), "1", 0, None, None, 2, 100)
    heads = [column.header for column in report.renderables[0].columns]
    assert str(heads[-1]).split() == ["round", "in", "float32"]


def test_a_processor_without_bfloat16_is_planned_in_float32_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(precisions, "find_bfloat16", lambda: "")
    report = planned(trial(tmp_path / "run"), capsys)
    assert report["other_precisions"] == report["float32_over_bf16"] == {}


def test_a_plan_says_that_bf16_changes_nothing_for_small_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    """Nothing is measured for them: the ratio is 1."""
    report = planned(trial(tmp_path / "run"), capsys, "--run.precision", "bf16")
    assert report["float32_over_bf16"] == {"mlp": 1.0}
    assert "'bf16' changes nothing: no layer" in report["basis"][-1]


def test_both_precisions_are_measured_by_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """All layers are computed in bfloat16 here."""
    monkeypatch.setattr(models_precision, "SMALL", 0)
    steps, step = [], precisions.step

    def count(fed: Any, *rest: Any) -> None:
        steps.append(fed.job.run.precision)
        step(fed, *rest)

    monkeypatch.setattr(precisions, "step", count)
    report = planned(trial(tmp_path / "run"), capsys, "--run.precision", "bf16")
    assert steps == ["float32", "bf16"] * (1 + precisions.TURNS)
    assert report["float32_over_bf16"]["mlp"] > 0 and list(report["other_precisions"]) == [
        "float32"
    ]
