"""One job for each method, with the settings of its paper, and a small version of each."""

import sys
from pathlib import Path

from hpcfed.algorithms import ALGORITHMS
from hpcfed.config.load import load
from tests.rows import for_each

METHODS = Path(__file__).parents[2] / "jobs/methods"
FILES = sorted(METHODS.glob("*.toml"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import jobs  # noqa: E402

SMALL = jobs.read()
SHOWN = [name for name, row in SMALL["rows"].items() if "cannot" not in row]
STAGES = {  # rounds of a method's first stage: a shorter run has nothing of what comes after it
    "cfl": "after",
    "fedcovid": "warmup",
    "fedl2g": "warmup",
    "fedrare": "inter_after",
    "harmony": "stage1_rounds",
    "reptile": "first_rounds",
    "semicyclic": "blocks",
}


@for_each(ALGORITHMS)
def test_each_method_has_its_job(method: str):
    assert load([str(METHODS / f"{method}.toml")], environ={}).algorithm.name == method


@for_each(FILES)
def test_a_job_file_starts_with_its_description(path: Path):
    assert path.read_text().startswith("# ") and load([str(path)], environ={})


@for_each(STAGES)
def test_no_run_is_shorter_than_its_methods_first_stage(method: str):
    full = load([str(METHODS / f"{method}.toml")], environ={})
    for job in (full, jobs.small_job(method, jobs.fields(method, SMALL))):
        assert getattr(job.algorithm, STAGES[method]) < job.rounds


def test_each_job_has_a_small_version_or_a_reason_why_not():
    assert set(SMALL["rows"]) == {path.stem for path in FILES}
    assert all(SMALL["rows"][name]["cannot"] for name in set(SMALL["rows"]) - set(SHOWN))


@for_each(SHOWN)
def test_a_small_version_is_a_job_of_the_same_method_and_says_how_it_is_measured(name: str):
    row = SMALL["rows"][name]
    full = load([str(METHODS / f"{name}.toml")], environ={})
    small = jobs.small_job(name, jobs.fields(name, SMALL))
    assert small.algorithm.name == full.algorithm.name and small.rounds <= 4 * full.rounds
    assert row["why"] and row["measure"] in jobs.MEASURES and 0 < row["chance"] < 1
    assert {field.partition(".")[0] for field in row.get("grid", {})} <= {"algorithm", "local"}
    for label in row.get("references", {}):
        assert jobs.measure_of(row, label) in jobs.MEASURES
        other = jobs.small_job(name, jobs.fields(name, SMALL, label))
        assert other.identity() != small.identity() and other.rounds == small.rounds


def test_a_verdict_names_results_above_chance_and_missed_claims():
    row = {"chance": 0.1, "references": {"fedavg": {}, "local": {"claim": "as good as"}}}

    def said(accuracy: list[float], fedavg: list[float], local: list[float]) -> str:
        values = {"accuracy": accuracy, "references": {"fedavg": fedavg, "local": local}}
        return jobs.verdict(row, values)

    assert said([0.13], [0.0], [0.0]) == "does not learn"
    assert said([0.9], [0.8], [0.91]) == "above fedavg; as good as local"
    assert said([0.8], [0.79], [0.9]) == "as good as fedavg (missed); below local (missed)"
    assert said([0.9, 0.8], [0.8, 0.8], [0.9, 0.82]) == "above fedavg; as good as local"  # means
    assert jobs.verdict(row, {"accuracy": [0.2], "references": {}}) == "learns"


def test_more_seeds_follow_unless_the_first_is_far_from_another_verdict():
    row = {"chance": 0.1, "references": {"fedavg": {}, "local": {"claim": "none"}}}

    def clear(accuracy: float, fedavg: float) -> bool:
        references = {"fedavg": [fedavg], "local": [accuracy]}
        return jobs.is_clear(row, {"accuracy": [accuracy], "references": references})

    assert clear(0.9, 0.84) and clear(0.9, 0.92)  # above by 0.02 is the claim, 0.03 is far from it
    assert not clear(0.9, 0.86) and not clear(0.9, 0.9)
    assert not clear(0.16, 0.05)  # little above chance


def test_a_row_stops_at_a_clear_first_seed_and_else_runs_all(monkeypatch):
    small = {"all": {}, "rows": {"fedprox": {"measure": "own", "chance": 0.1,
             "references": {"fedavg": {}}}}}  # fmt: skip
    ran: list[tuple[str, int]] = []
    accuracy = {"fedprox": 0.9, "fedavg": 0.5}

    def run(name, job, column, folder, within):
        method = job.get("algorithm", {}).get("name", name)
        ran.append((method, job["seed"]))
        return accuracy[method], 1.0

    monkeypatch.setattr(jobs, "run", run)
    values = jobs.measure("fedprox", small, Path(), {}, 3, {})
    assert ran == [("fedprox", 0), ("fedavg", 0)]
    assert values["accuracy"] == [0.9] and values["references"] == {"fedavg": [0.5]}
    accuracy["fedavg"] = 0.89
    measured = jobs.measure("fedprox", small, Path(), {}, 1, {})
    assert measured["accuracy"] == [0.9] and measured["references"] == {"fedavg": [0.89]}
    ran.clear()
    assert jobs.measure("fedprox", small, Path(), {}, 3, measured)["accuracy"] == [0.9] * 3
    assert [seed for _, seed in ran] == [1, 1, 2, 2]  # the first is not run again


def test_a_claim_of_little_loss_is_met_a_little_below():
    row = {"chance": 0.1, "references": {"fedavg": {"claim": "close"}}}
    verdicts = [
        jobs.verdict(row, {"accuracy": [accuracy], "references": {"fedavg": [0.8]}})
        for accuracy in (0.76, 0.74)
    ]
    assert verdicts == ["below fedavg", "below fedavg (missed)"]


def test_a_grid_is_chosen_from_by_validation_for_the_method_and_its_reference(monkeypatch):
    row = {"measure": "common", "chance": 0.1, "references": {"fedavg": {}},
           "grid": {"algorithm.mu": [0.1, 1.0], "local.lr": [0.01, 0.1]}}  # fmt: skip
    small = {"all": {"evaluate": {"every": 1000}}, "rows": {"fedprox": row}}
    trials = []

    def run(name, job, column, folder):
        trials.append((job["evaluate"], column, job["seed"]))
        return job["local"]["lr"] - job.get("algorithm", {}).get("mu", 0.0), 1.0

    monkeypatch.setattr(jobs, "run", run)
    choice = jobs.choose("fedprox", small, Path())
    assert choice["fedprox"]["values"] == {"algorithm.mu": 0.1, "local.lr": 0.1}
    assert choice["fedavg"]["values"] == {"local.lr": 0.1}  # it has no mu
    assert len(trials) == 4 + 2
    scored = {"every": 1000, "validation": jobs.VALIDATION, "validation_model": "received"}
    assert trials[0] == (scored, "rounds/accuracy_validation_pooled", jobs.CHOICE_SEED)
    assert jobs.CHOICE_SEED not in jobs.SEEDS
    chosen = jobs.fields("fedprox", small, choice=choice)
    assert chosen["algorithm"]["mu"] == 0.1 and chosen["local"]["lr"] == 0.1


def test_each_method_has_a_row_of_its_present_job_and_the_table_is_made_of_the_rows():
    rows, choices = jobs.load_saved("rows"), jobs.load_saved("choices")
    run = {jobs.small_job(name, jobs.fields(name, SMALL)).algorithm.name for name in SHOWN}
    assert set(ALGORITHMS) - run == {"fedclip"}
    assert set(rows) == set(SHOWN)
    assert [name for name in SHOWN if not jobs.is_present(name, SMALL)] == []
    gridded = [name for name in SHOWN if "grid" in SMALL["rows"][name]]
    assert set(choices) == set(gridded)
    assert [name for name in gridded if not jobs.is_chosen(name, SMALL)] == []
    text = (jobs.RESULTS / "table.md").read_text()
    assert text == jobs.compose_table(SMALL)
    assert "to be run" not in text and "commit `" in text


@for_each(SHOWN)
def test_a_small_run_learns_and_a_missed_claim_has_its_cause(name: str):
    row = SMALL["rows"][name]
    outcome = jobs.verdict(row, jobs.load_saved("rows")[name])
    assert outcome != "does not learn"
    assert bool(row.get("unmet")) == ("missed" in outcome), outcome


def test_a_row_is_of_its_present_job_when_a_field_is_new_that_it_does_not_set():
    row = jobs.fields("fedavg", SMALL)
    job = jobs.small_job("fedavg", row)
    values, rounds = jobs.describe("fedavg", row)
    others = {field for field in values if not field.startswith("algorithm.")}
    assert others <= set(jobs.flat(job.model_dump(mode="json", exclude_defaults=True)))
    assert values["local.lr"] == job.local.lr and rounds == job.rounds


def test_a_reference_of_the_same_bytes_has_the_budget_of_the_method(monkeypatch):
    references = {"fedavg": {"same": "bytes"}, "local": {}}
    row = {"measure": "own", "chance": 0.1, "references": references}
    budgets = []

    def run(name, job, column, folder, within):
        budgets.append(within)
        return 0.5, {"bytes": 10.0 + len(budgets), "virtual": 3.0}

    monkeypatch.setattr(jobs, "run", run)
    jobs.measure("fedprox", {"all": {}, "rows": {"fedprox": row}}, Path(), {}, 1, {})
    assert budgets == [None, ("bytes", 11.0), None]


def test_the_last_round_that_counts_is_within_the_budget_but_never_before_the_first():
    spent = jobs.np.array([4.0, 8.0, 12.0])
    assert [jobs.last_within(spent, budget) for budget in (9.0, 12.0, 1.0)] == [1, 2, 0]


def test_the_table_says_what_was_chosen_on_the_test_split_beside_a_grid():
    assert jobs.name_basis({}) == "not chosen"
    assert jobs.name_basis({"grid": {}}) == "validation"
    both = jobs.name_basis({"grid": {}, "chosen": "test split: rounds"})
    assert both == "validation; test split: rounds"
