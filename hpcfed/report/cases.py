"""Fields by which the rows and columns of a table distinguish runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcfed.config.datasets import PARTITIONS
from hpcfed.config.job import CHANGE_RESULTS, FREE, READING
from hpcfed.core.errors import ConfigError
from hpcfed.report.naming import Names, find_named
from hpcfed.results.run import Run, format_value
from hpcfed.storage.fields import covers, flat
from hpcfed.storage.record import RUN_ID

SEED = "seed"
SKEW = {
    "dirichlet": "data.alpha",
    "classes": "data.classes_per_client",
    "shards": "data.shards_per_client",
    "quantity": "data.spread",
    "inner-dirichlet": "data.alpha",
    "pathological": "data.classes_per_client",
    "distribution": "data.classes_per_client",
}  # the field of each partition that gives its skew
FIRST = (
    "data.name",
    "data.partition",
    "clients",
    "participation",
)  # fields of columns, in this order
COMPARED = (
    "data.name",
    "data.partition",
    "clients",
)  # numbers with different values of these are never in one column
EVALUATED = "evaluate.every"  # on which numbers of several rounds depend
UNCOUNTED = (
    "algorithm",
    EVALUATED,
    "evaluate.before",
    "evaluate.received",
    "evaluate.common",
    "evaluate.batch",
)  # a method's own fields, which its row shows, and further measurements
MACHINE = ("ranks", "nodes", "version")  # of a run's header; they change its times alone
ASIDE = (  # fields on which no number depends
    *(name for name in FREE if name not in CHANGE_RESULTS),
    "adapt.save",
)


def refuse_same_seed(
    command: str, runs: Sequence[Run], of: str, columns: Sequence[str] = ()
) -> None:
    """Raise ConfigError if two of these runs have the same seed, of which only one may count.

    command: the one that is given the runs.  of: what they are runs of, in words.
    columns: fields by which --columns of the command would tell runs apart.
    """
    by_seed: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.at([SEED]), []).append(run)
    for alike in (alike for alike in by_seed.values() if len(alike) > 1):
        names = ", ".join(run.name for run in alike)
        identities = {run.header.get(RUN_ID, "") if run.begun else "" for run in alike}
        if len(identities) == 1 and "" not in identities:
            raise ConfigError(f"{command}: these are copies of one run: {names}; give one of them")
        differ = [name for name in columns if len({run.at([name]) for run in alike}) > 1]
        apart = f", or tell them apart by --columns {','.join(differ)}" if differ else ""
        raise ConfigError(
            f"{command}: {len(alike)} runs of {of} have the same seed: {names}; give one of "
            f"them{apart}"
        )


def find_cases(paths: Sequence[Path | Run], names: Names = None) -> list[Run]:
    """Return the runs at these paths, and all of the sweeps among them, by method.

    names: of methods and data, as `find_named` takes them.
    Runs of a sweep have the fields that the sweep defines. The rounds of a finished run are those
    that it has done, which may be more than its job asks for, unless it has ended early.
    """
    return [with_rounds_done(run) for run in find_named(paths, names)]


def with_rounds_done(run: Run) -> Run:
    fields = run.member[1].fields if run.member else run.fields
    early = run.finished and bool(run.record.header.get("early"))
    done = {"rounds": run.record.rounds} if run.finished and not early else {}
    return run.with_fields(fields | done)


def with_machine(runs: list[Run]) -> list[Run]:
    """Return the runs with their ranks, nodes and version of hpcfed as further fields.

    A run that has not started has the values 0 and "".
    """
    return [run.with_fields(run.fields | machine(run)) for run in runs]


def machine(run: Run) -> dict[str, Any]:
    header = run.header if run.begun else {}
    nodes = header.get("hardware", {}).get("nodes", 0)
    version = header.get("versions", {}).get("hpcfed", "")
    return dict(zip(MACHINE, (header.get("ranks", 0), nodes, version), strict=True))


def name_skew(runs: list[Run], axes: Sequence[str]) -> list[Run]:
    """Return the runs with partition and skew as one value, `dirichlet(0.5)`.

    They are unchanged if an axis names the field of the skew.
    """
    if set(axes) & set(SKEW.values()):
        return runs
    return [run.with_fields(one_skew(run.fields)) for run in runs]


def one_skew(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with partition and skew as one value, without skews of other partitions.

    A further skew that the partition uses remains a field of its own.
    """
    kind = fields.get("data.partition", "")
    skew, used = SKEW.get(kind), PARTITIONS[kind].fields if kind in PARTITIONS else ()
    named = f"{kind}({format_value(fields[skew])})" if skew in fields else kind
    hidden = {s for s in SKEW.values() if s == skew or s.removeprefix("data.") not in used}
    return {n: v for n, v in fields.items() if n not in hidden} | {"data.partition": named}


def axes(
    runs: list[Run],
    rows: list[str] | None,
    columns: list[str] | None,
    timed: bool = False,
) -> tuple[list[str], list[str]]:
    """Return the fields of rows and of columns, so that runs of a cell differ only in their seed.

    timed: whether the numbers are seconds or joules, which the machine changes too. Then runs of
    other ranks, nodes or versions of hpcfed have columns of their own.

    Axes that are not given are chosen: rows by method and its own parameters, columns by all other
    fields that differ, those of the machine last, so that they hide none of the job. Other data are
    another column even if each method has its own, because their numbers are not comparable.
    Raises ConfigError if runs of a cell would differ in a field that neither axis may take, or have
    the same seed.
    """
    down, across = list(rows or ["algorithm.name"]), list(columns or [])
    fields = {name for run in runs for name in run.fields}
    for name in (name for name in (*down, *across) if name not in fields):
        raise ConfigError(
            f"table: no field {name!r} in the jobs of these runs; it is written as in "
            f"--{FIRST[0]}; there are also {', '.join(MACHINE)}"
        )
    fields -= set(MACHINE)
    for name in sorted(fields - {SEED}, key=lambda name: order(runs, name)):
        apart = name in COMPARED and name not in (*down, *across) and columns is None
        cell = conflicting_values(runs, [] if apart else [*down, *across], name)
        if not cell:
            continue
        axis = down if name.startswith("algorithm.") else across
        if (rows if axis is down else columns) is not None:
            raise shared_cell(name, cell)
        axis.append(name)
    fixed = {*(rows or ["algorithm.name"]), *(columns or []), *FIRST}
    shown = (
        drop_redundant(runs, down, across, fixed, fields),
        drop_redundant(runs, across, down, fixed, fields),
    )
    return with_machine_columns(runs, *shown, columns is not None) if timed else shown


def with_machine_columns(
    runs: list[Run], down: list[str], across: list[str], fixed: bool
) -> tuple[list[str], list[str]]:
    """Return the axes, with columns for what differs in the machines of runs of one column.

    fixed: whether the columns may not be extended, because the call names them; then only runs of
    one cell must have one machine. Runs that have not started have none.
    """
    begun = [run for run in runs if run.begun]
    axes_of_machine = [*across, *(name for name in down if fixed or name in MACHINE)]
    columns: list[str] = []
    for name in sorted(MACHINE, key=lambda name: order(runs, name)):
        values = conflicting_values(begun, [*axes_of_machine, *columns], name)
        if values and fixed:
            raise shared_cell(name, values)
        columns += [name] if values else []
    return down, [*across, *drop_redundant(begun, columns, axes_of_machine, set(), set(MACHINE))]


def shared_cell(name: str, values: set[str]) -> ConfigError:
    """Return the error that runs of one cell have these values of a field."""
    return ConfigError(
        f"table: runs that would share a cell differ in {name}: {' and '.join(sorted(values))}; "
        "add it to --rows or --columns, or give fewer runs"
    )


def by_seed(runs: list[Run], timed: bool = False) -> tuple[list[str], list[list[Run]]]:
    """Return the fields that distinguish runs, and groups of runs that differ only in their seed.

    timed: as in `axes`; the runs are those of `with_machine`. A group may have several runs of one
    seed.
    """
    down, across = axes(runs, None, None, timed)
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(run.at([*down, *across]), []).append(run)
    return [*down, *across], list(groups.values())


def drop_redundant(
    runs: list[Run], axis: list[str], other: list[str], fixed: set[str], fields: set[str]
) -> list[str]:
    """Return an axis without the fields that are determined by those chosen after them.

    fixed: fields that stay.
    """
    remaining = list(axis)
    for name in (name for name in axis if name not in fixed):
        rest = [field for field in remaining if field != name]
        if not any(conflicting_values(runs, [*rest, *other], field) for field in fields - {SEED}):
            remaining = rest
    return remaining


def order(runs: list[Run], name: str) -> tuple[int, int, str]:
    """Return the sort key of fields to be considered for axes.

    Data and clients come first, because they may determine a method's own parameters; these come
    before other fields, and fields with few values before those with many.
    """
    place = FIRST.index(name) if name in FIRST else len(FIRST) + (not name.startswith("algorithm."))
    return place, len({run.at([name]) for run in runs}), name


def conflicting_values(runs: list[Run], axes: list[str], name: str) -> set[str]:
    """Return two or more values of a field among the runs of one cell.

    Returns an empty set if there is no such cell.
    """
    if covers(ASIDE, name):
        return set()
    cells: dict[tuple[str, ...], set[str]] = {}
    for run in runs:
        cells.setdefault(run.at(axes), set()).update(run.at([name]))
    return next((values for values in cells.values() if len(values) > 1), set())


def also_differ(
    groups: Iterable[Sequence[Run]], shown: Sequence[str], counted: Sequence[str] = ()
) -> str:
    """Return the fields that differ within these groups of runs, apart from those shown.

    For example "also differ: rounds 1/3, local.lr 0.0005/0.1", or "" if none does. The seed, a
    method's own parameters, and fields on which no number depends are ignored.

    counted: of UNCOUNTED and MACHINE, the fields on which these numbers depend.
    """
    uncounted = [name for name in (*UNCOUNTED, *MACHINE) if name not in counted]
    values: dict[str, dict[str, None]] = {}
    for group in groups:
        for name in dict.fromkeys(name for run in group for name in run.fields):
            if name in (SEED, *shown) or covers((*ASIDE, *uncounted), name):
                continue
            of = [run for run in group if name in run.fields and (run.begun or name not in MACHINE)]
            texts = dict.fromkeys(run.at([name])[0] for run in of)
            if len(texts) > 1:
                values.setdefault(name, {}).update(texts)
    names = sorted(values, key=lambda n: (n != "rounds", not n.startswith("data."), n))
    parts = ", ".join(f"{name} {'/'.join(values[name])}" for name in names)
    return f"also differ: {parts}" if parts else ""


def code_or_data_differ(runs: Iterable[Run]) -> list[str]:
    """Return a line for each way in which the runs are of different code or of changed data.

    Code means versions and commits of hpcfed, and methods and models of users' own.
    """
    begun = [run.header for run in runs if run.begun]
    versions = {text: None for header in begun if (text := version(header))}
    lines = [f"the runs are of different code: {', '.join(versions)}"] if len(versions) > 1 else []
    by_name: dict[str, set[str]] = {}
    for header in begun:
        for part in (*header.get("history", []), header):
            for name, code in part.get("own", {}).items():
                by_name.setdefault(name, set()).add(code)
    differ = [name for name, codes in by_name.items() if len(codes) > 1]
    lines += [f"the code of {name} differs between or within the runs" for name in differ]
    return lines + changed_data(begun)


def changed_data(headers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for each data set that has changed between these runs, or within one.

    Runs whose jobs read the data otherwise, such as images of another size, are not compared.
    """
    digests: dict[str, list[Any]] = {}
    for header in headers:
        fields = sorted(flat(header.get("job", {})).items())
        reading = [(n, v) for n, v in fields if covers(READING, n) and not covers(FREE, n)]
        for part in (*header.get("history", []), header):
            if stored := part.get("data_digests"):
                digests.setdefault(repr(reading), []).append((header.get("data", ""), stored))
    return [
        f"the data {several[0][0]} have changed between or within the runs"
        for several in digests.values()
        if any(one != several[0] for one in several)
    ]


def version(header: Mapping[str, Any]) -> str:
    """Return version and commit of hpcfed with which a run was last continued, "" if unknown."""
    number, commit = header.get("versions", {}).get("hpcfed", ""), header.get("commit", "")
    return f"hpcfed {number}{f' ({commit[:10]})' if commit else ''}" if number else ""
