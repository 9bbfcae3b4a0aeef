"""A small run of each job in jobs/methods, beside its reference and chance, in one table.

`python benchmarks/jobs.py [NAME ...] [--again] [--data ../shared/data]`

`jobs.toml` says how each job is made small and why, what it is measured by, and which reference it
is compared with at the same budget. Each row runs in a process of its own, on one core. Rows are
added to results/jobs/rows.json as they are made; the same command continues with those that are
missing, or whose job, or whose reference's, has changed. A change of code that leaves the job as
it is, is not seen: `--again` runs the named rows again. The table is results/jobs/table.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import tempfile
import time
import tomllib
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import h5py
import numpy as np

import hpcfed
from hpcfed.config.load import Given, load
from hpcfed.storage.atomic import put
from hpcfed.storage.fields import flat

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent / "jobs" / "methods"
SMALL = HERE / "jobs.toml"
RESULTS = HERE / "results" / "jobs"
DATA = HERE.parents[1] / "shared" / "data"
MEASURES = {  # what a row can be measured by: its column of a result file
    "own": "clients/accuracy",
    "received": "clients/accuracy_received",
    "common": "rounds/accuracy_common",
    "pr_auc": "rounds/pr_auc_pooled",
    "final": "final/accuracy",  # own models after the step that a method makes after its last round
}
CUT = {"train": 6000, "test": 2000}  # images that are read of a large set
MARGIN = 0.02  # accuracies that differ by less count as equal: a test split has 360 images or more
HEADS = ("job", "data", "models", "rounds", "measure", "accuracy", "reference", "its", "chance")

Table = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="jobs; default: all")
    parser.add_argument("--again", action="store_true", help="also rows that are made already")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of HDF5 files")
    options = parser.parse_args()
    small = read()
    unknown = set(options.names) - set(small["rows"])
    if unknown:
        parser.error(f"no job {', '.join(sorted(unknown))} in {SMALL.name}")
    folder = Path(tempfile.mkdtemp(prefix="hpcfed-jobs-"))
    try:
        cut(options.data, folder)
        for name in options.names or small["rows"]:
            make(name, small, folder, options.again)
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


def make(name: str, small: Table, folder: Path, again: bool) -> None:
    """Run one row in a process of its own, unless it is there, and add it to the results."""
    row = small["rows"][name]
    if "cannot" in row:
        return
    rows, wanted = rows_made(), digest(name, small)
    if not again and rows.get(name, {}).get("hash") == wanted:
        return
    begun, spawn = time.perf_counter(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            values = pool.submit(measure, name, small, folder).result()
        except Exception as error:  # one row must not keep the others from being made
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            return
    values |= {"hash": wanted, "seconds": round(time.perf_counter() - begun)}
    rows = rows_made() | {name: values}
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows)]
    put(RESULTS / "rows.json", ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    print(name, json.dumps(values), verdict(row, values), flush=True)


def rows_made() -> Table:
    path = RESULTS / "rows.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def measure(name: str, small: Table, folder: Path) -> Table:
    """Run a job made small, and its references; return what they reached."""
    row = small["rows"][name]
    values = {"accuracy": run(name, fields(name, small), row["measure"], folder)}
    values["references"] = {
        label: run(name, fields(name, small, label), measure_of(row, label), folder)
        for label in row.get("references", {})
    }
    return values


def run(name: str, given: Table, column: str, folder: Path) -> float:
    """Run one job and return its last value of this column, of clients their mean."""
    data = given.get("data", {}) | {"root": str(folder)}
    if str(data.get("name", "")).endswith(".h5"):
        data["name"] = str(folder / data["name"])
    given = given | {"data": data}
    out = folder / "run"
    result = hpcfed.run(JOBS / f"{name}.toml", quiet=True, out=out, overwrite=True, **flat(given))
    path = MEASURES[column]
    final = path.startswith("final/")
    values = result.record.arrays[path] if final else result.column(path)[-1]
    shutil.rmtree(out)
    return round(float(np.nanmean(values)), 4)


def fields(name: str, small: Table, reference: str = "") -> Table:
    """Return the fields that make a job small: its cuts, its own, and those of a reference."""
    row = small["rows"][name]
    parts = [small["cuts"][part] for part in row.get("cuts", [])] + [row.get("job", {})]
    if reference:
        other = row["references"][reference]
        parts = [{key: part[key] for key in part if key != "algorithm"} for part in parts]
        parts.append(other.get("job", {"algorithm": {"name": reference}}))
    result: Table = {}
    for part in [small["all"], *parts]:
        for key, value in part.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = result[key] | value if both else value
    return result


def measure_of(row: Table, reference: str) -> str:
    return row.get("references", {}).get(reference, {}).get("measure", row["measure"])


def small_job(name: str, given: Table) -> Any:
    """Return the checked job of a row, as it would be run."""
    return load([str(JOBS / f"{name}.toml")], environ={}, given=Given(fields=given))


def digest(name: str, small: Table) -> str:
    """Return what changes when a row has to be made again: its jobs and its measures.

    Fields outside the method and [local] count where they are set, so that a new one changes
    nothing.
    """
    row = small["rows"][name]
    parts: list[Any] = [row["measure"]]
    for label in ("", *row.get("references", {})):
        job = small_job(name, fields(name, small, label))
        own = flat(job.model_dump(mode="json", exclude_defaults=True))
        values = {
            field: value
            for field, value in flat(job.identity()).items()
            if field in own or field.startswith(("algorithm.", "local."))
        }
        parts += [values, job.rounds, label and measure_of(row, label)]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def verdict(row: Table, values: Table) -> str:
    """Return whether a row is above chance and meets what its paper claims over each reference."""
    reached = values["accuracy"]
    if not reached > row["chance"] + 2 * MARGIN:
        return "does not learn"
    words = []
    for label, value in values["references"].items():
        claim = row.get("references", {}).get(label, {}).get("claim", "above")
        if reached >= value + MARGIN:
            found = "above"
        elif reached > value - MARGIN:
            found = "as good as"
        else:
            found = "below"
        met = found == "above" or found == claim or claim == "none"
        met = met or (found == "as good as" and claim == "below")
        words.append(f"{found} {label}" + ("" if met else " (missed)"))
    return "; ".join(words) or "learns"


def write_table(small: Table) -> str:
    """Write the table of all rows as Markdown, and return it."""
    rows = rows_made()
    lines = [f"| {' | '.join((*HEADS, 'verdict', 'made small, remarks'))} |"]
    lines.append("|---" * (len(HEADS) + 2) + "|")
    for name, row in small["rows"].items():
        if "cannot" in row:
            cells = [name, *[""] * (len(HEADS) - 1), "not shown", row["cannot"]]
        elif name not in rows:
            cells = [name, *[""] * (len(HEADS) - 1), "not run yet", ""]
        else:
            cells = [name, *shown(name, small, rows[name])]
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    put(RESULTS / "table.md", text.encode())
    return text


def shown(name: str, small: Table, values: Table) -> list[str]:
    """Return the cells of a row, after its name."""
    row, job = small["rows"][name], small_job(name, fields(name, small))
    references = values["references"]
    labels = [
        label + ("" if measure_of(row, label) == row["measure"] else f", {measure_of(row, label)}")
        for label in references
    ]
    stale, said = values["hash"] != digest(name, small), verdict(row, values)
    numbers = [
        row["measure"],
        f"{values['accuracy']:.3f}",
        "; ".join(labels),
        "; ".join(f"{value:.3f}" for value in references.values()),
        f"{row['chance']:.2f}",
    ]
    if stale:  # its numbers are not of the job that stands there now
        return ["", "", "", *numbers, f"{said} (of a former job)", "To be run again."]
    remarks = [row["why"], row.get("unmet", "") if "missed" in said else ""]
    about = [f"{Path(job.data.name).stem}, {job.clients} clients", ", ".join(job.models.mix)]
    return [*about, str(job.rounds), *numbers, said, " ".join(remarks).strip()]


if __name__ == "__main__":
    main()
