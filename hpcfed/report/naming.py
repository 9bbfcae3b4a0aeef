"""Names and order of methods and data, the same in all tables, figures and pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpcfed.config import methods
from hpcfed.core.errors import ConfigError, unknown
from hpcfed.results.run import Run, data_names, find

Names = str | Mapping[str, str] | None  # by the name in jobs; a text is `fedavg=FedAvg,...`
METHOD, DATA = "algorithm.name", "data.name"


def find_named(
    paths: Sequence[Path | Run], names: Names = None, required: bool = True
) -> list[Run]:
    """Return the runs at these paths, in the order of their methods, with names of these.

    Methods are in the order of `hpcfed list algorithms`, and users' own come last; runs of one
    method are in the order of the paths. Runs without results that belong to no sweep are last,
    because their method is not known.
    names: in place of the usual ones.
    required: as `find` takes it.
    Raises ConfigError for a name of none of these runs, and for one name of two methods.
    """
    all_runs = find(paths, required)
    unknown_runs = [run for run in all_runs if not (run.begun or run.member)]
    runs = [run for run in all_runs if run.begun or run.member]
    runs.sort(key=lambda run: methods.place(run.method))
    chosen = parse(names)
    keys = {key: methods.registered_name(key) for key in chosen}
    titles = method_titles(run.method for run in runs)
    data = data_names(run.fields for run in runs if DATA in run.fields)
    usable = {*titles, *map(methods.spelling, titles), *data, *data.values()}
    for key in keys:
        if not {key, keys[key]} & usable:
            raise ConfigError(f"--names: {unknown('method of these runs', key, sorted(titles))}")
    for table in (titles, data):
        for name, title in table.items():
            texts = [chosen[key] for key in keys if {key, keys[key]} & {name, title}]
            table[name] = texts[-1] if texts else title
        if twice := [title for title, n in Counter(table.values()).items() if n > 1]:
            raise ConfigError(
                f"--names: {' and '.join(n for n in table if table[n] == twice[0])} are both named "
                f"{twice[0]!r}; give each its own name"
            )
    for run in runs:
        run.method_label = titles[run.method]
        run.data_label = data.get(run.fields.get(DATA, ""), "")
    return [*runs, *unknown_runs]


def parse(names: Names) -> dict[str, str]:
    """Return names by the names in jobs. Raises ConfigError for a text that is not of the form."""
    if not isinstance(names, str):
        return dict(names or {})
    pairs = [pair.partition("=") for pair in names.split(",")]
    for key, mark, text in pairs:
        if not (key and mark and text):
            raise ConfigError(
                f"--names {names!r}: {key + mark + text!r} is not NAME=TEXT; write "
                "--names fedavg=FedAvg,mine:Mine=Ours"
            )
    return {key.strip(): text.strip() for key, _, text in pairs}


def method_titles(names: Iterable[str]) -> dict[str, str]:
    """Return the spelling of each method; of two users' classes with one name the full names."""
    titles = {name: methods.spelling(name) for name in names}
    count = Counter(titles.values())
    return {name: title if count[title] == 1 else name for name, title in titles.items()}


def with_titles(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with the names of their methods and data as the fields' values."""
    return [
        run.with_fields(
            run.fields
            | {METHOD: run.method_title}
            | ({DATA: run.data_label} if run.data_label else {})
        )
        for run in runs
    ]
