"""Small runs of each job in jobs/methods, beside its reference and chance, in one table.

`python benchmarks/jobs.py [NAME ...] [--again] [--at-once N] [--data ../shared/data]`

`jobs.toml` says how each job is made small and why, what it is measured by, and which reference it
is compared with at the same budget. A row that has a grid first chooses the values of its fields,
for the method and for its references, on validation examples: they are taken from the clients'
training examples, in runs with a seed that the table does not use. Then each row runs on one core,
with one seed if its verdict is clear, else with three. Rows are added to results/jobs/rows.json
(choices to choices.json) as they are finished; the same command continues with those that are
missing, or whose job or reference has changed. It does not see a change of code that leaves the job
as it is: `--again` runs the named rows again. The table is results/jobs/table.md.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np
import torch

import hpcfed
from hpcfed.config.load import Given, load
from hpcfed.core import rng
from hpcfed.data.datasets import load as load_data
from hpcfed.results.columns import so_far
from hpcfed.storage.atomic import put
from hpcfed.storage.fields import flat, nested

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent / "jobs" / "methods"
SMALL = HERE / "jobs.toml"
RESULTS = HERE / "results" / "jobs"
DATA = HERE.parents[1] / "shared" / "data"
SEEDS = (0, 1, 2)
CHOICE_SEED = 10  # of the runs that choose; other clients and models than those of the table
VALIDATION = 0.2  # share of the training examples that the choice is made on
MEASURES = {  # what a row can be measured by: its column of a result file
    "own": "clients/accuracy",
    "received": "clients/accuracy_received",
    "common": "rounds/accuracy_common",
    "pr_auc": "rounds/pr_auc_pooled",
    "final": "final/accuracy",  # own models after the step that a method makes after its last round
    # what clients would receive, of the worst client; and that after the step that follows the last
    # round
    "worst": "worst client: clients/accuracy_received",
    "final_worst": "worst client: final/accuracy_received",
    "everywhere": "everywhere",  # own models on the whole test split, as a common model is
    "averaged": "averaged",  # the plain mean of the own models, on the whole test split
}
VALIDATED = {  # by what a row's fields are chosen: the model, and the column of its score
    "own": ("own", "clients/accuracy_validation"),
    "received": ("received", "clients/accuracy_validation"),
    "common": ("received", "rounds/accuracy_validation_pooled"),
}
CUT = {"train": 6000, "test": 2000}  # images that are read of a large set
MARGIN = 0.02  # mean accuracies that differ by less count as equal
CLOSE = 0.05  # what a claim of little loss allows
CLEAR = 0.03  # a first seed so far from any other verdict decides alone
HEADS = (
    "job",
    "data",
    "models",
    "rounds",
    "measure",
    "accuracy",
    "reference",
    "its accuracy",
    "chance",
    "verdict",
    "settings chosen on",
    "made small, remarks",
)

Table = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs; default: all")
    parser.add_argument("--again", action="store_true", help="also rows that are finished")
    parser.add_argument(
        "--seeds", type=int, default=len(SEEDS), metavar="N", help="maximum number of seeds per row"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="rows side by side")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of HDF5 files")
    options = parser.parse_args()
    small = read()
    unknown = set(options.names) - set(small["rows"])
    if unknown:
        parser.error(f"no job {', '.join(sorted(unknown))} in {SMALL.name}")
    folder = Path(tempfile.mkdtemp(prefix="hpcfed-jobs-"))
    try:
        cut(options.data, folder)
        make(options.names or list(small["rows"]), small, folder, options)
    finally:
        shutil.rmtree(folder)
    print(write_table(small))


def read() -> Table:
    """Return the table of small versions: cuts by name, and rows by job."""
    return tomllib.loads(SMALL.read_text(encoding="utf-8"))


def cut(source: Path, folder: Path) -> None:
    """Put the data sets of this folder into another, large sets of images shortened."""
    for path in sorted(source.glob("*.h5")):
        with h5py.File(path) as full:
            images = full["train"].get("images")
            if images is None or len(images) <= CUT["train"]:
                (folder / path.name).symlink_to(path.resolve())
                continue
            with h5py.File(folder / path.name, "w") as short:
                short.attrs.update(full.attrs)
                for split, n in CUT.items():
                    for array in ("images", "labels"):
                        short[f"{split}/{array}"] = full[split][array][:n]
    with h5py.File(folder / "emnist_letters_am.h5") as letters:
        contradict(letters, folder / "letters_contradict.h5")


def contradict(source: h5py.File, path: Path) -> None:
    """Write a data set of ten users whose labels contradict one another.

    They have equal parts of the examples. Five of them call each class by the name of the next.
    """
    users, g = 10, rng.stream(0, "owner")
    with h5py.File(path, "w") as target:
        target.attrs.update({"classes": source.attrs["classes"], "own_tests": 1})
        for split in ("train", "test"):
            images, labels = source[split]["images"][:], source[split]["labels"][:]
            owner = g.permutation(np.arange(len(labels)) % users)
            changed = (labels + 1) % len(json.loads(source.attrs["classes"]))
            target[f"{split}/images"], target[f"{split}/users"] = images, owner
            target[f"{split}/labels"] = np.where(owner < users // 2, labels, changed)


def make(names: list[str], small: Table, folder: Path, options: argparse.Namespace) -> None:
    """Run the rows that are not finished, N at once, and add them to the results."""
    spawn, again, seeds = multiprocessing.get_context("spawn"), options.again, options.seeds
    with ProcessPoolExecutor(options.at_once, mp_context=spawn) as pool:
        rows = {}
        for name in names:
            row = small["rows"][name]
            choose_first = "grid" in row and (again or not is_chosen(name, small))
            if "cannot" not in row and (
                again or choose_first or not is_finished(name, small, seeds)
            ):
                rows[pool.submit(make_row, name, small, folder, seeds, again, choose_first)] = name
        for future in as_completed(rows):
            name = rows[future]
            try:
                values, choice = future.result()
            except Exception as error:  # one row must not keep the others from being made
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            if choice:
                save("choices", name, {"hash": digest_of_choice(name, small), "choice": choice})
            save("rows", name, {"hash": digest(name, small)} | values)
            print(name, json.dumps(values), verdict(small["rows"][name], values), flush=True)


def make_row(
    name: str, small: Table, folder: Path, seeds: int, again: bool, choose_first: bool
) -> tuple[Table, Table]:
    """Run a row; return what it reached, and the values of its grid's fields if it chooses them.

    Seeds that are saved, of the same job and commit, are not run again.
    """
    choice, values = {}, load_saved("rows").get(name, {})
    if choose_first:
        choice = choose(name, small, folder)
    if again or choose_first or not is_present(name, small) or values["commit"] != code_commit():
        values = {}
    return measure(name, small, folder, choice or load_choice(name), seeds, values), choice


def is_present(name: str, small: Table) -> bool:
    """Return whether the row is saved, and of the job that it has now."""
    return load_saved("rows").get(name, {}).get("hash") == digest(name, small)


def is_finished(name: str, small: Table, seeds: int = len(SEEDS)) -> bool:
    """Return whether the row is saved, of the job that it has now, with the seeds that it needs."""
    if not is_present(name, small):
        return False
    values = load_saved("rows")[name]
    return len(values["accuracy"]) >= seeds or is_clear(small["rows"][name], values)


def is_chosen(name: str, small: Table) -> bool:
    """Return whether the values of a row's grid are chosen, and with the job that it has now."""
    return load_saved("choices").get(name, {}).get("hash") == digest_of_choice(name, small)


def load_choice(name: str) -> Table:
    return load_saved("choices").get(name, {}).get("choice", {})


def load_saved(kind: str) -> Table:
    """Return what is saved of all rows: "rows" or "choices"."""
    path = RESULTS / f"{kind}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(kind: str, name: str, values: Table) -> None:
    table = load_saved(kind) | {name: values}
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(table[key])}" for key in sorted(table)]
    put(RESULTS / f"{kind}.json", ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def measure(
    name: str, small: Table, folder: Path, choice: Table, seeds: int, values: Table
) -> Table:
    """Run a job made small, and its references; return what they reached with each seed.

    There is one seed if its verdict is clear, otherwise `seeds`.
    values: what they reached with the first seeds, or nothing.
    """
    row = small["rows"][name]
    labels = ["", *row.get("references", {})]
    accuracy = list(values.get("accuracy", []))
    references = {
        label: list(values["references"][label]) if values else [] for label in labels[1:]
    }
    reached = {"": accuracy, **references}
    for seed in SEEDS[len(accuracy) : seeds]:
        budget: dict[str, float] = {}
        for label in labels:
            job = fields(name, small, label, choice) | {"seed": seed}
            cost = row["references"][label].get("same") if label else None
            within = (cost, budget[cost]) if cost else None
            column = MEASURES[measure_of(row, label)]
            value, spent = run(name, job, column, folder, within)
            reached[label].append(value)
            budget = budget if label else spent
        if is_clear(row, {"accuracy": accuracy, "references": references}):
            break
    return {"accuracy": accuracy, "references": references, "commit": code_commit()}


def is_clear(row: Table, values: Table) -> bool:
    """Return whether the first seed is far from chance, and from what would change the verdict."""
    accuracy = values["accuracy"][0]
    distances = [accuracy - row["chance"] - 2 * MARGIN]
    for label, reference in row.get("references", {}).items():
        claim = reference.get("claim", "above")
        if claim != "none":
            needed = {"above": MARGIN, "close": -CLOSE}.get(claim, -MARGIN)
            distances.append(abs(accuracy - values["references"][label][0] - needed))
    return min(distances) >= CLEAR


def code_commit() -> str:
    """Return the last commit that changed hpcfed or the jobs; it ends in "+" if files differ."""
    files = ["--", "hpcfed", "jobs"]
    git = ["git", "-C", str(HERE.parent)]
    texts = [
        subprocess.run([*git, *words, *files], capture_output=True, text=True, check=True).stdout
        for words in (["log", "-1", "--format=%H"], ["status", "--porcelain"])
    ]
    return texts[0].strip() + ("+" if texts[1].strip() else "")


def choose(name: str, small: Table, folder: Path) -> Table:
    """Return the values of the grid's fields that score best on validation examples.

    The method and each reference have their own. All scores are returned too.
    """
    row, choice = small["rows"][name], {}
    for label in ("", *row.get("references", {})):
        model, column = VALIDATED[measure_of(row, label)]
        job = fields(name, small, label, choice={})
        validated = {"validation": VALIDATION, "validation_model": model}
        job["evaluate"] = job["evaluate"] | validated
        scores = []
        for values in grid(row, label):
            trial = overlay(job, nested(values))
            score, _ = run(name, trial | {"seed": CHOICE_SEED}, column, folder)
            scores.append([values, score])
        if scores:
            best = max(scores, key=lambda pair: pair[1])
            choice[label or name] = {"values": best[0], "scores": scores}
    print(name, "chose", {label: part["values"] for label, part in choice.items()}, flush=True)
    return choice


def grid(row: Table, reference: str = "") -> Iterator[Table]:
    """Yield all combinations of the values of the grid's fields.

    For a reference these are fields that it has too, or those of a grid of its own.
    """
    other = row.get("references", {}).get(reference, {})
    values = other.get("grid", row["grid"])
    if reference and "grid" not in other:
        values = {key: v for key, v in values.items() if not key.startswith("algorithm.")}
    if values:
        for combination in itertools.product(*values.values()):
            yield dict(zip(values, combination, strict=True))


def run(
    name: str, job: Table, column: str, folder: Path, within: tuple[str, float] | None = None
) -> tuple[float, dict[str, float]]:
    """Run one job; return its value of this column, of clients their mean, and what it cost.

    The costs are its virtual seconds and its bytes, as `so_far` names them.
    within: a cost, and how much of it the rounds that count have; default: the last round counts.
    """
    data = job.get("data", {}) | {"root": str(folder)}
    if str(data.get("name", "")).endswith(".h5"):
        data["name"] = str(folder / data["name"])
    if within is not None:
        job = overlay(job, {"evaluate": {"every": 1}})
    out = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
    worst = column.startswith("worst client: ")
    column = column.removeprefix("worst client: ")
    fields = flat(job | {"data": data})
    result = hpcfed.run(JOBS / f"{name}.toml", quiet=True, out=out, overwrite=True, **fields)
    costs = so_far(result.record)
    last = -1 if within is None else last_within(costs[within[0]], within[1])
    if column in (MEASURES["everywhere"], MEASURES["averaged"]):
        values = score_everywhere(out, result.job, column == MEASURES["averaged"])
    elif column.startswith("final/"):
        values = result.record.arrays[column]
    else:
        values = result.column(column)[last]
    shutil.rmtree(out)
    value = np.nanmin(values) if worst else np.nanmean(values)
    return round(float(value), 4), {cost: float(costs[cost][-1]) for cost in costs}


def last_within(spent: np.ndarray, budget: float) -> int:
    """Return the last round whose cumulative cost is within a budget; the first one if none is."""
    return max(int((spent <= budget).sum()) - 1, 0)


def score_everywhere(out: Path, job: Table, averaged: bool) -> list[float]:
    """Return the accuracy of each client's own model on the whole test split of a run's data.

    averaged: of their plain mean instead.
    """
    test = load_data(job["data"]["name"], Path(job["data"]["root"])).test
    models = [hpcfed.load_model(out, k) for k in range(job["clients"])]
    if averaged:
        states = [model.state_dict() for model in models]
        mean = {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}
        models[0].load_state_dict(mean)
        models = models[:1]
    with torch.no_grad():
        answers = [model(torch.from_numpy(test.x)).argmax(1).numpy() for model in models]
    return [float((answer == test.y).mean()) for answer in answers]


def fields(name: str, small: Table, reference: str = "", choice: Table | None = None) -> Table:
    """Return the fields that make a job small: its cuts, its own, and those of a reference.

    choice: what was chosen for the row, as `choose` returns it; default: what is saved.
    """
    row = small["rows"][name]
    parts = [small["cuts"][part] for part in row.get("cuts", [])] + [row.get("job", {})]
    if reference:
        other = row["references"][reference]
        parts = [{key: part[key] for key in part if key != "algorithm"} for part in parts]
        parts.append(other.get("job", {"algorithm": {"name": reference}}))
    if "grid" in row:
        choice = load_choice(name) if choice is None else choice
        parts.append(nested(choice.get(reference or name, {}).get("values", {})))
    result: Table = {}
    for part in [small["all"], *parts]:
        result = overlay(result, part)
    return result


def overlay(job: Table, part: Table) -> Table:
    """Return the job with the fields of a part in place of its own, table by table."""
    result = dict(job)
    for key, value in part.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = result[key] | value if both else value
    return result


def measure_of(row: Table, reference: str) -> str:
    return row.get("references", {}).get(reference, {}).get("measure", row["measure"])


def small_job(name: str, row: Table) -> Any:
    """Return the checked job of a row, as it would be run."""
    return load([str(JOBS / f"{name}.toml")], environ={}, arguments=Given(fields=row))


def digest(name: str, small: Table) -> str:
    """Return what changes when a row has to be made again: its jobs and its measures.

    Fields that are not the method's count only if they are set, so that a new one changes nothing.
    """
    row = small["rows"][name]
    parts: list[Any] = [row["measure"], SEEDS]
    for label in ("", *row.get("references", {})):
        parts += describe(name, fields(name, small, label))
        parts.append(label and measure_of(row, label))
        same = row["references"][label].get("same") if label else None
        parts += {"virtual": [label], "bytes": [label, same]}.get(same, [])
    return hash_of(parts)


def digest_of_choice(name: str, small: Table) -> str:
    """Return what changes when the fields of a row's grid have to be chosen again."""
    row = small["rows"][name]
    parts: list[Any] = [row["measure"], CHOICE_SEED, VALIDATION, row["grid"]]
    for label in ("", *row.get("references", {})):
        parts += describe(name, fields(name, small, label, choice={}))
        parts.append(row.get("references", {}).get(label, {}).get("grid"))
    return hash_of(parts)


def describe(name: str, row: Table) -> list[Any]:
    """Return the fields of a job that say what it computes, and its rounds."""
    job = small_job(name, row)
    fields = flat(job.model_dump(mode="json", exclude_defaults=True))
    values = {
        field: value
        for field, value in flat(job.identity()).items()
        if field in fields or field.startswith("algorithm.")
    }
    return [values, job.rounds]


def hash_of(parts: list[Any]) -> str:
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def verdict(row: Table, values: Table) -> str:
    """Return whether a row is above chance and meets what its paper claims over each reference.

    Means over the seeds are compared.
    """
    reached = statistics.mean(values["accuracy"])
    if not reached > row["chance"] + 2 * MARGIN:
        return "does not learn"
    words = []
    for label, accuracies in values["references"].items():
        claim = row.get("references", {}).get(label, {}).get("claim", "above")
        difference = round(reached - statistics.mean(accuracies), 4)
        if difference >= MARGIN:
            outcome = "above"
        elif difference > -MARGIN:
            outcome = "as good as"
        else:
            outcome = "below"
        met = outcome in ("above", claim) or claim == "none"
        met = met or (claim == "close" and difference > -CLOSE)
        met = met or (outcome == "as good as" and claim == "below")
        words.append(f"{outcome} {label}" + ("" if met else " (missed)"))
    return "; ".join(words) or "learns"


def write_table(small: Table) -> str:
    """Write the table of all rows as Markdown, and return it."""
    text = compose_table(small)
    put(RESULTS / "table.md", text.encode())
    return text


def compose_table(small: Table) -> str:
    """Return the table of all rows as Markdown, below a line that says of which commit it is."""
    rows, lines = load_saved("rows"), []
    for name, row in small["rows"].items():
        if "cannot" in row:
            cells = ["", "", "", "", "", "", "", "", "not shown", "", row["cannot"]]
        elif rows.get(name, {}).get("hash") == digest(name, small):
            cells = row_cells(name, small, rows[name])
        else:
            cells = ["", "", "", "", "", "", "", "", "to be run", "", ""]
        lines.append(f"| {' | '.join([name, *cells])} |")
    head = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    return "\n".join([name_commits(small, rows), "", *head, *lines]) + "\n"


def name_commits(small: Table, rows: Table) -> str:
    """Return the sentence that says at which commits of hpcfed the rows were made."""
    names: dict[str, list[str]] = {}
    for name in small["rows"]:
        if name in rows:
            names.setdefault(rows[name]["commit"][:10] or "unknown", []).append(name)
    parts = sorted(names, key=lambda commit: -len(names[commit]))
    if not parts:
        return "No row has been run."
    others = "; ".join(f"at `{commit}`: {', '.join(names[commit])}" for commit in parts[1:])
    rest = f"; {others}" if others else ""
    return (
        f"Seeds {', '.join(map(str, SEEDS))}; mean ± deviation. Made at commit `{parts[0]}`{rest}."
    )


def row_cells(name: str, small: Table, values: Table) -> list[str]:
    """Return the cells of a row, after its name."""
    row, job = small["rows"][name], small_job(name, fields(name, small))
    references, outcome = values["references"], verdict(row, values)
    labels = [
        label + ("" if measure_of(row, label) == row["measure"] else f", {measure_of(row, label)}")
        for label in references
    ]
    remarks = [
        row["why"],
        row.get("unmet", "") if "missed" in outcome else "",
        name_choice(name, row),
    ]
    return [
        f"{Path(job.data.name).stem}, {job.clients} clients",
        ", ".join(job.models.mix),
        str(job.rounds),
        row["measure"],
        format_spread(values["accuracy"]),
        "; ".join(labels),
        "; ".join(map(format_spread, references.values())),
        f"{row['chance']:.2f}",
        outcome,
        name_basis(row),
        " ".join(filter(None, remarks)),
    ]


def name_basis(row: Table) -> str:
    """Return on what a row's settings were chosen: by its grid, and otherwise."""
    parts = ["validation" if "grid" in row else "", row.get("chosen", "")]
    return "; ".join(filter(None, parts)) or "not chosen"


def format_spread(accuracies: list[float]) -> str:
    """Return the mean, and the deviation if there are several."""
    deviation = f" ± {statistics.stdev(accuracies):.3f}" if len(accuracies) > 1 else ""
    return f"{statistics.mean(accuracies):.3f}{deviation}"


def name_choice(name: str, row: Table) -> str:
    """Return the values that a row's grid has led to, of the method and of its references."""
    if "grid" not in row:
        return ""
    parts = [
        f"{label}: " + ", ".join(f"{field} = {value}" for field, value in part["values"].items())
        for label, part in load_choice(name).items()
    ]
    return f"Chosen: {'; '.join(parts)}."


if __name__ == "__main__":
    main()
