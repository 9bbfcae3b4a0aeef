"""Definition of a sweep from a command line: the product of the values of its fields.

Each combination is checked as a job before any run starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from hpcfed.config import words as typed
from hpcfed.config.fields import annotation_of, is_list
from hpcfed.config.files import read
from hpcfed.config.job import CHANGE_RESULTS, FREE, Job, job_model
from hpcfed.config.layers import environment
from hpcfed.config.load import DEFAULT_ALGORITHM, Importable, load, text_at
from hpcfed.config.methods import ALGORITHMS, registered_name
from hpcfed.config.words import CommandLine, job_files
from hpcfed.core.errors import ConfigError
from hpcfed.launch.sweep.search import Range, parse
from hpcfed.storage.fields import Fields, covers, flat
from hpcfed.storage.sweep import Member, Sweep

MOST = 1000  # runs of a sweep
OURS = {
    "out",
    "resume",
    "overwrite",
    "force",
    "dry_run",
}  # fields of a job that a sweep sets itself
LONG = 150  # characters of a run's name
METHODS = "algorithm.name"
# fields that may change after a sweep was defined: its runs can last longer, but finished ones keep
# their results
MAY_CHANGE = ("rounds", *(name for name in FREE if name not in CHANGE_RESULTS))
Values = dict[str, str]  # of the fields that vary, as they are given


@dataclass(frozen=True)
class Flag:
    """A flag of the command line.

    words: as it was given.
    alternatives: its values; empty if it does not vary.
    range: the range from which a search draws its value.
    method: the one method whose runs have it, as ditto of `--ditto.lam`; "" for all runs.
    """

    field: str
    words: list[str]
    alternatives: tuple[str, ...] = ()
    range: Range | None = None
    method: str = ""

    @property
    def name(self) -> str:
        """The field's name on the command line."""
        return self.words[0].removeprefix("--")

    def applies(self, method: str) -> bool:
        """Return whether the runs of this method have it."""
        return self.method in ("", method)


def define(
    words: Sequence[str],
    folder: Path,
    ranks: int,
    launcher: str,
    overlays: Sequence[Path] = (),
    trials: Sequence[Values] = (),
) -> Sweep:
    """Return the sweep of these words: `[JOB.toml ...] [--field value,value ...]`.

    With several job files all combinations are run with each. Overlays override the fields of each
    of them, later ones those of earlier ones.
    trials: of a search, values of the fields that are given as ranges; all combinations are run
    with each.
    Flags that all runs have in common are words of the sweep. Raises ConfigError for a wrong field
    or value of any run, with those of all runs in one message.
    """
    files, options = split_files(words)
    refuse_overlays(files, overlays)
    cases = [
        (*run, path)
        for path in files or [None]  # type: ignore[list-item]
        for run in choices([path, *overlays] if path else [], options, len(files), trials)
    ]
    if len(cases) > MOST:
        raise too_many()
    common = [] if len(files) > 1 else cases[0][0]
    run_words = [
        [
            *fixed[len(common) :],
            *(word for name, value in values.items() for word in (f"--{name}", value)),
        ]
        for fixed, values, _ in cases
    ]
    called = labels([file_label(path, files) | values for _, values, path in cases])
    jobs = load_fields([[*common, *more] for more in run_words], called)
    refuse_equal([(path, job) for (*_, path), job in zip(cases, jobs, strict=True)], called)
    if trials and not all(job["evaluate.validation"] for job in jobs):
        raise ConfigError(
            "sweep: a search is judged on examples that clients hold out of their training data, "
            "and evaluate.validation is 0; add --evaluate.validation 0.2"
        )
    runs = (Member(*parts) for parts in zip(called, run_words, jobs, strict=True))
    return Sweep(folder, common, os.getcwd(), ranks, launcher, tuple(runs))


def split_files(words: Sequence[str]) -> tuple[list[Path], list[typed.Flag]]:
    """Return the job files, and the flags."""
    line = CommandLine.parse(words)
    for path in {path for path in line.files if line.files.count(path) > 1}:
        raise ConfigError(f"sweep: {path} is given twice; name each job file once")
    return list(line.files), list(line.flags.values())


def refuse_overlays(files: Sequence[Path], overlays: Sequence[Path]) -> None:
    """Raise ConfigError for overlays without a job file, or that are jobs of the sweep."""
    jobs = {path.resolve() for path in files}
    for path in job_files(list(map(str, overlays))):
        if not files:
            raise ConfigError(
                f"sweep: --with {path} lies over job files; name at least one, as in\n"
                f"  hpcfed sweep JOB.toml --with {path} --seed 0,1,2"
            )
        if path.resolve() in jobs:
            raise ConfigError(
                f"sweep: {path} is a job of the sweep, and lies over its jobs by --with; name it "
                f"in one of these places"
            )


def ranges(words: Sequence[str], overlays: Sequence[Path] = ()) -> dict[str, Range]:
    """Return the fields of a command line that are given as ranges."""
    files, options = split_files(words)
    paths = [*files[:1], *overlays] if files else []
    return {flag.name: flag.range for flag in flags_of(paths, options) if flag.range}


def varied(words: Sequence[str]) -> list[str]:
    """Return the fields of a command line that have alternatives."""
    files, options = split_files(words)
    return [flag.name for flag in flags_of(files[:1], options) if flag.alternatives]


def choices(
    paths: Sequence[Path], options: Sequence[typed.Flag], files: int, trials: Sequence[Values] = ()
) -> Iterator[tuple[list[str], Values]]:
    """Yield, for each run of one job, the words that do not vary and the values that do.

    paths: its job file and its overlays.
    files: the number of job files of the sweep.
    """
    flags = flags_of(paths, options)
    refuse(flags, files, bool(trials))
    fixed = [str(path.resolve()) for path in paths]
    fixed += [
        word for flag in flags if not (flag.alternatives or flag.range) for word in flag.words
    ]
    distinct: list[Values] = []
    for trial in trials or [{}]:
        for values in combinations(flags, methods_of(paths, options)[0], trial):
            if values not in distinct:  # trials of another method's field alone
                distinct.append(values)
    return ((fixed, values) for values in distinct)


def file_label(path: Path | None, files: list[Path]) -> Values:
    """Return the part of a run's name for its job file, if there are several.

    It is the file's name, or its path if two have the same name.
    """
    if path is None or len(files) == 1:
        return {}
    alike = [file.stem for file in files].count(path.stem) > 1
    return {"job.name": str(path.with_suffix("")) if alike else path.stem}


def flags_of(paths: Sequence[Path], options: Sequence[typed.Flag]) -> list[Flag]:
    """Return the flags, each with its values."""
    methods = methods_of(paths, options)
    return [flag(each, methods) for each in options]


def methods_of(paths: Sequence[Path], options: Sequence[typed.Flag]) -> list[str]:
    """Return the methods that a command line, the environment or job files name."""
    chosen = next((each.text for each in options if each.name == METHODS), "")
    below = [environment(os.environ), *read(*paths)[::-1]]
    names = chosen or text_at(below, METHODS) or DEFAULT_ALGORITHM
    return [registered_name(name.strip()) for name in re.split("[,;]", names) if name.strip()]


def flag(each: typed.Flag, methods: list[str]) -> Flag:
    """Return one flag of the command line.

    A comma separates alternatives. A semicolon does if there is one, or if the field is a list.
    Those in parentheses belong to a value, as in concat(motion=gru;sound=mlp).
    """
    field, of = own_field(each.name, methods)
    if each.alone:
        return Flag(field, each.words, method=of)
    if span := parse(field, each.text):
        return Flag(field, each.words, range=span, method=of)
    several = len(split_values(each.text, ";")) > 1
    mark = ";" if several or takes_list(field, [of] if of else methods) else ","
    values = tuple(v.strip() for v in split_values(each.text.removesuffix(";"), mark))
    if field == METHODS:
        values = tuple(map(registered_name, values))
    if of:
        return Flag(field, each.words, values, method=of)
    if mark == ";" and len(values) == 1:  # a comma, or a list, as it stands
        return Flag(field, [each.words[0], values[0]])
    if len(values) > 1 and ("" in values or len(set(values)) < len(values)):
        raise ConfigError(
            f"sweep: {field}: {each.text!r} has an empty value, or one twice; separate them by "
            f"one {mark}"
        )
    return Flag(field, each.words, values if len(values) > 1 else ())


def split_values(text: str, mark: str) -> list[str]:
    """Split a text at these marks, but for those in parentheses."""
    return re.split(rf"{mark}(?![^()]*\))", text)


def is_own(name: str) -> bool:
    """Return whether a flag's name begins with that of a method, and not with a job's section."""
    return "." in name and name.partition(".")[0] not in Job.model_fields


def own_field(name: str, methods: list[str]) -> tuple[str, str]:
    """Return the field of a flag, and the method whose runs alone have it.

    "ditto.lam" is algorithm.lam of the runs of ditto. The second value is "" for other fields.
    Raises ConfigError for a method that the sweep does not run.
    """
    method, _, field = name.rpartition(".")
    if not is_own(name):
        return name, ""
    method = registered_name(method)
    if method in ALGORITHMS and method not in methods:
        raise ConfigError(
            f"sweep: --{name}: the sweep runs {', '.join(methods)} and no {method}; add it to "
            f"--algorithm.name, or remove --{name}"
        )
    for other in (other for other in methods if other.partition(":")[2] == method):
        raise ConfigError(
            f"sweep: --{name}: a field of all methods is written --algorithm.{field}, and one of "
            f"{method} alone --{other}.{field}"
        )
    return (f"algorithm.{field}", method) if method in methods else (name, "")


def takes_list(field: str, methods: list[str]) -> bool:
    """Return whether a value of this field is a list, so that commas belong to the value."""
    path = field.split(".")
    models = [job_model(name) for name in methods] if path[0] == "algorithm" else [Job]
    return any(is_list(annotation_of(model, path)) for model in models)


def refuse(flags: list[Flag], files: int, search: bool = False) -> None:
    """Raise ConfigError for flags that a sweep cannot take, or that define a single run."""
    for name in (flag.field.removeprefix("no-") for flag in flags):
        if name in OURS:
            raise ConfigError(
                f"sweep: --{name}: a sweep gives each run its own folder, continues unfinished "
                f"runs and skips finished ones; remove {name}"
            )
    spans = [flag for flag in flags if flag.range]
    if spans and not search:
        raise ConfigError(
            f"sweep: {' '.join(spans[0].words)} is a range, from which a search draws; add "
            f"--search random --trials 10, or name the values, separated by commas"
        )
    if search:
        return
    if files < 2 and not any(flag.alternatives for flag in flags):
        raise ConfigError(
            "sweep: no field has several values; separate them by commas, as in --seed 0,1,2, "
            "and those "
            "of a field that is a list by semicolons, as in --models.mix 'mlp,cnn;cnn'"
        )


def combinations(flags: list[Flag], method: str, trial: Values) -> Iterator[Values]:
    """Yield the values that vary, run by run; the last field varies fastest.

    Fields of one method vary in its runs alone.
    method: of the runs, if it does not vary.  trial: values of the fields that are ranges.
    """
    varied = [flag for flag in flags if flag.alternatives]
    common, n = [flag for flag in varied if not flag.method], 0
    for shared in product(*(flag.alternatives for flag in common)):
        values = {flag.field: value for flag, value in zip(common, shared, strict=True)}
        chosen = values.get("algorithm.name", method)
        trial_values = {f.field: trial[f.name] for f in flags if f.range and f.applies(chosen)}
        method_flags = [flag for flag in varied if flag.method == chosen]
        for more in product(*(flag.alternatives for flag in method_flags)):
            if (n := n + 1) > MOST:
                raise too_many()
            values |= {flag.field: value for flag, value in zip(method_flags, more, strict=True)}
            order = [flag.field for flag in varied if flag.applies(chosen)]
            yield trial_values | {field: values[field] for field in order}


def too_many() -> ConfigError:
    return ConfigError(f"sweep: more than {MOST:,} runs; name fewer values, or make several sweeps")


def labels(chosen: list[Values]) -> list[str]:
    """Return a folder name for each run, from its values: `fedavg_alpha=0.5_seed=0`."""
    fields = list(dict.fromkeys(name for values in chosen for name in values))
    short = [name.rpartition(".")[2] for name in fields]
    titles = {
        name: last if short.count(last) == 1 else name
        for name, last in zip(fields, short, strict=True)
    }
    called = [label({titles[name]: value for name, value in values.items()}) for values in chosen]
    # their values differ in characters that names do not show
    alike = {name for name in called if called.count(name) > 1}
    return [
        f"{name}_{digest(values)}" if name in alike else name
        for name, values in zip(called, chosen, strict=True)
    ]


def digest(values: Values) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:8]


def label(values: Values) -> str:
    parts = (
        value.removeprefix("__main__:")
        if title.rpartition(".")[2] == "name"
        else f"{title}={value}"
        for title, value in values.items()
    )
    return re.sub(r"[^\w.+=-]", "-", "_".join(parts), flags=re.ASCII).lstrip(".-")[:LONG] or "run"


def load_fields(lines: list[list[str]], called: list[str]) -> list[Fields]:
    """Return the whole job of each run. Raises ConfigError with the errors of all of them."""
    jobs, wrong = [], dict[str, str]()
    for words, name in zip(lines, called, strict=True):
        try:
            jobs.append(job_of(words))
        except ConfigError as error:
            wrong.setdefault(str(error), name)
    if wrong:
        message = "\n".join(
            f"{error}\n  in run {name}; none was started" for error, name in wrong.items()
        )
        if re.search(r"no field 'algorithm\.|: algorithm\.\w+: no field", message):
            message += "\n  a field of one method alone has its name, as in --ditto.lam 0.1,1"
        raise ConfigError(message)
    return jobs


def refuse_equal(jobs: Sequence[tuple[Path | None, Fields]], called: Sequence[str]) -> None:
    """Raise ConfigError for two runs of one job file that are the same job, as seeds 0 and 00.

    jobs: with their files.
    """
    names: dict[str, str] = {}
    for (path, fields), name in zip(jobs, called, strict=True):
        other = names.setdefault(f"{path} {json.dumps(fields, sort_keys=True)}", name)
        if other != name:
            raise ConfigError(
                f"sweep: the runs {other} and {name} are the same job; name each value once"
            )


def job_of(words: list[str], only: Importable | None = None) -> Fields:
    """Return the whole job of a command line, by dotted names, without fields that a sweep sets.

    only: limits the methods and models that it may import.
    """
    job = load(words, only=only)
    return {name: value for name, value in flat(job.plain()).items() if name not in OURS}


def agree(old: Sweep, new: Sweep) -> None:
    """Raise ConfigError unless the new sweep has all runs of the old one.

    It may have more.
    """
    runs = {run.name: run for run in new.runs}
    for run in old.runs:
        if run.name not in runs:
            raise ConfigError(
                f"out: {old.folder} holds a sweep that has a run {run.name} too; "
                "name all its values, and more if you like, or give another --out"
            )
        check_same_job(run, runs[run.name].fields, old.folder)


def with_numbers_of(old: Sweep, new: Sweep) -> Sweep:
    """Return the new sweep with the runs of the old one first, in their order.

    Tasks of an array job, which may be queued or running, name their runs by number.
    """
    runs = {run.name: run for run in new.runs}
    before = [runs.pop(run.name) for run in old.runs]
    return replace(new, runs=(*before, *runs.values()))


def check_same_job(
    run: Member, fields: Fields, folder: Path, may_change: Sequence[str] = MAY_CHANGE
) -> None:
    """Raise ConfigError if a run's job has changed since the sweep was defined.

    may_change: fields, or tables of fields, in which it may differ.
    """
    for name in sorted(run.fields.keys() | fields.keys()):
        before, now = run.fields.get(name), fields.get(name)
        if before != now and not covers(may_change, name):
            rounds = name == "rounds"
            other = "give the words that it began with" if rounds else "give another --out"
            raise ConfigError(
                f"{folder}: run {run.name} was defined with {name} = {before!r}, and now has "
                f"{now!r}; put the job back as it was, or {other}"
            )
