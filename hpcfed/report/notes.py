"""Notes on the runs of a table or a comparison: how far their numbers can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from hpcfed.core.wording import count_range, join_few
from hpcfed.report.cases import SEED
from hpcfed.report.formats import Shown
from hpcfed.report.measures import TIMED, Measure
from hpcfed.results.columns import column, faults, rounds_here
from hpcfed.results.run import Run

FEW = 8  # cells, runs or clients that a note names


def run_notes(runs: Sequence[Run], value: str = "") -> list[str]:
    """Return notes on finished runs that ended early, and on those of which clients failed.

    value: of the numbers; if it depends on the machine, also on those resumed on other ranks.
    """
    finished = [run for run in runs if run.finished]
    resumed = resumed_notes(finished, TIMED[value]) if value in TIMED else []
    return [*early_notes(finished), *fault_notes(finished), *resumed]


def early_notes(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a note on the runs that ended early, by the rounds of their jobs.

    Their last round is another than that of the other runs.
    """
    by_total: dict[int, list[str]] = {}
    for run in (run for run in runs if run.header.get("early")):
        text = f"{run.name} after {run.record.rounds}"
        by_total.setdefault(run.job["rounds"], []).append(text)
    for total, texts in by_total.items():
        yield f"ended early: {join_few(texts, FEW)} of {total} rounds"


def fault_notes(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a note on the runs of which clients failed, those with the most failures first."""
    shares: dict[str, float] = {}
    for run in runs:
        if failures := faults(run.record):
            reported = "reports" if "clients/reports" in run.record.columns else "cohort"
            total = len(failures) + int(np.nansum(column(run.record, f"clients/{reported}")))
            why = ", ".join(dict.fromkeys(kind for _, _, kind in failures))
            shares[f"{run.name} {len(failures)} of {total} ({why})"] = len(failures) / total
    if shares:
        texts = sorted(shares, key=lambda text: -shares[text])
        yield f"reports of clients failed: {join_few(texts, FEW)}"


def resumed_notes(runs: Sequence[Run], how: str = TIMED["seconds"]) -> Iterator[str]:
    """Yield a note on rounds that were done on other ranks, for each run with such rounds.

    how: whether these are included or left out.
    """
    for run in runs:
        here = rounds_here(run.record)
        if not here.all():
            yield (
                f"{run.name}: {np.sum(~here)} of its {len(here)} rounds were done on other ranks, "
                f"before it was resumed; {how}"
            )


def seeds_note(where: str, cells: Iterable[tuple[str, Shown]]) -> str:
    """Return a note if the numbers of cells are of different seeds, else "".

    where: what the cells have in common, such as a column; "" for nothing.
    cells: that are compared with one another, with their labels.
    """
    seeds = {label: cell.seed_numbers for label, cell in cells}
    texts = [f"{label} {join_few(numbers, FEW)}" for label, numbers in seeds.items() if numbers]
    if len({numbers for numbers in seeds.values() if numbers}) < 2:
        return ""
    return f"{where}{': ' * bool(where)}seeds differ: {join_few(texts, FEW, '; ')}"


def clients_note(where: str, cells: Iterable[tuple[str, Sequence[Run], Measure]]) -> str:
    """Return a note if cells are means over different clients, else "".

    where: what the cells have in common, such as a column; "" for nothing.
    cells: that are compared with one another: label, runs and measure of each.
    Clients without a value are compared seed by seed, because other seeds have other examples.
    """
    numbers, lacking = dict[str, list[int]](), dict[str, set[int]]()
    missing = dict[tuple[str, ...], set[bytes]]()
    for label, runs, measure in cells:
        each = measure.each or (lambda record: {})
        for run in (run for run in runs if run.finished):
            if with_value := [*each(run.record)]:
                ids = np.setdiff1d(np.arange(run.fields.get("clients", 0)), with_value)
                numbers.setdefault(label, []).append(len(with_value))
                lacking.setdefault(label, set()).update(ids.tolist())
                missing.setdefault(run.at([SEED]), set()).add(ids.tobytes())
    if all(len(several) == 1 for several in missing.values()):
        return ""
    if len({tuple(sorted(several)) for several in numbers.values()}) > 1:
        texts = [f"{label} {count_range(ns, 'client')}" for label, ns in numbers.items()]
        named = join_few(texts, FEW)
    else:  # as many each, but others
        texts = [f"{label} lacks {join_few(sorted(ks), FEW)}" for label, ks in lacking.items()]
        named = join_few(texts, FEW, "; ")
    return (
        f"{where}{': ' * bool(where)}means over different clients, because not all have a value: "
        f"{named}"
    )
