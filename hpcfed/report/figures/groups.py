"""Groups of runs for figures: fields of data make panels, other fields make lines.

Runs that differ only in the seed form one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcfed.report.cases import SEED, by_seed, one_skew
from hpcfed.report.colours import Look, looks
from hpcfed.report.figures.runs import left_out, setting, short
from hpcfed.results.run import Run

METHOD = "algorithm.name"
APART = ("data.", "clients", "participation")  # prefixes of fields whose values make panels
TOLD = (
    METHOD,
    "data.name",
    "data.partition",
    "data.halve",
    "clients",
)  # fields shown by the method's name, and by `setting`


@dataclass(frozen=True)
class Group:
    """Runs of one line in one panel, which differ only in their seed."""

    panel: str
    label: str
    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        """The name of their method in jobs."""
        return self.runs[0].method


def groups(runs: Sequence[Run], ignore: Sequence[str] = ()) -> list[Group]:
    """Return the runs as lines and panels, in their order.

    ignore: fields that are drawn otherwise.
    """
    cases = {run.name: run.with_fields(drop_fields(one_skew(run.fields), ignore)) for run in runs}
    fields, alike = by_seed(list(cases.values())) if cases else ([], [])
    panels = [name for name in fields if name.startswith(APART)]
    lines = [name for name in fields if name not in panels]
    originals = {run.name: run for run in runs}
    result = []
    for group in alike:
        one, *others = [originals[case.name] for case in group]
        title = ", ".join([setting(one, ignore), *describe_fields(group[0], panels)])
        label = ", ".join([one.method_title, *describe_fields(group[0], lines)])
        result += split_runs(title, label, [one, *others], ignore)
    return distinct(result)


def unfinished_apart(all_groups: Sequence[Group]) -> list[Group]:
    """Return the groups, and each unfinished run as a group of its own if others are finished.

    The rounds that it lacks would be cut off from those of the others.
    """
    result = []
    for group in all_groups:
        result.append(replace(group, runs=tuple(final(group))))
        for run in missing(group):
            label = f"{group.label} ({run.name}, not finished)"
            result.append(replace(group, label=label, runs=(run,)))
    return result


def without_unfinished(all_groups: Sequence[Group]) -> list[Group]:
    """Return the groups without their unfinished runs if others are finished."""
    return [replace(group, runs=tuple(final(group))) for group in all_groups]


def final(group: Group) -> list[Run]:
    """Return the finished runs of a group, or all if none is finished."""
    return [run for run in group.runs if run.finished] or list(group.runs)


def missing(group: Group) -> list[Run]:
    """Return the runs that `final` leaves out."""
    done = final(group)
    return [run for run in group.runs if run not in done]


def notes(all_groups: Sequence[Group]) -> tuple[str, ...]:
    """Return notes on the runs that `without_unfinished` leaves out."""
    return left_out([run for group in all_groups for run in missing(group)])


def distinct(all_groups: list[Group]) -> list[Group]:
    """Return the groups with unique labels.

    If shortened labels are the same, the name of the group's first run is added.
    """
    twice = {
        key
        for key, n in Counter((group.panel, group.label) for group in all_groups).items()
        if n > 1
    }
    return [
        replace(group, label=f"{group.label} ({group.runs[0].name})")
        if (group.panel, group.label) in twice
        else group
        for group in all_groups
    ]


def split_runs(title: str, label: str, alike: list[Run], ignore: Sequence[str]) -> list[Group]:
    """Return one group of these runs.

    If two of them have the same seed and the same `ignore` fields, each run is a separate group,
    with its name.
    """
    if len({tuple(str(run.fields.get(name)) for name in (SEED, *ignore)) for run in alike}) == len(
        alike
    ):
        return [Group(title, label, tuple(alike))]
    return [Group(title, f"{label} ({run.name})", (run,)) for run in alike]


def drop_fields(fields: dict, names: Sequence[str]) -> dict:
    return {name: value for name, value in fields.items() if name not in names}


def describe_fields(run: Run, names: Sequence[str]) -> list[str]:
    """Return fields that distinguish a run, as `mu 0.1`, with long values shortened.

    Fields that the title or the method's name shows are left out.
    """
    pairs = ((name, *run.at([name])) for name in names if name not in TOLD)
    return [
        f"{name.split('.')[-1].replace('_', ' ')} {short(value, 24)}"
        for name, value in pairs
        if value
    ]


def by_panel(all_groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Return the groups of each panel, by its title."""
    return {
        title: [group for group in all_groups if group.panel == title]
        for title in dict.fromkeys(group.panel for group in all_groups)
    }


def by_title(runs: Sequence[Run]) -> dict[str, Look]:
    """Return how the lines of runs are drawn that are not averaged, by the runs' titles."""
    return dict(zip([r.title for r in runs], looks([r.method for r in runs]), strict=True))


def lines_of(all_groups: Sequence[Group]) -> dict[str, Look]:
    """Return how the lines of a legend are drawn, by their texts."""
    methods = {group.label: group.method for group in all_groups}
    return dict(zip(methods, looks(list(methods.values())), strict=True))
