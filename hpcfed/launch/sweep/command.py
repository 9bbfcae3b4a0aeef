"""`hpcfed sweep JOB.toml --algorithm.name fedavg,fedprox --seed 0,1,2`: runs of all combinations.

Each run has its own folder. Alternatives of a field are separated by commas. Those of a field that
is a list itself, such as models.mix, are separated by semicolons, which are allowed for any other
field too: `--models.mix 'mlp,cnn;cnn'`. With several job files all combinations are run with each,
so that one sweep makes the runs of a paper's table. `--with FILE.toml` overrides fields of each of
them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcfed.config.load import Importable
from hpcfed.core.errors import CheckpointError, ConfigError, printable
from hpcfed.core.exit_status import DONE, FAULT, RESUME_ME
from hpcfed.core.tables import console, table
from hpcfed.core.wording import count_noun, join_few
from hpcfed.engine import changed_code
from hpcfed.engine.folder import make
from hpcfed.launch.sweep.grid import (
    MAY_CHANGE,
    agree,
    check_same_job,
    define,
    is_own,
    job_of,
    ranges,
    split_files,
    varied,
    with_numbers_of,
)
from hpcfed.launch.sweep.launch import continuing, is_finished, launcher, own_code
from hpcfed.launch.sweep.pool import LEFT, Outcome, Pool, is_pruned, runs_at_once
from hpcfed.launch.sweep.search import (
    TRIALS,
    Range,
    Trial,
    Values,
    draw,
    draw_untried,
    is_hopeless,
    propose,
)
from hpcfed.models.own_code import changed, digests, own_names
from hpcfed.report.choose import score, score_by_round
from hpcfed.storage import names
from hpcfed.storage import sweep as store
from hpcfed.storage.record import load, stamp
from hpcfed.storage.sweep import Member, Sweep, exists, read, write


def sweep(
    words: Sequence[str],
    overlays: Sequence[Path] | None = None,
    out: Path | None = None,
    at_once: int | None = None,
    ranks: int | None = None,
    launcher: str | None = None,
    task: int | None = None,
    dry_run: bool = False,
    submit: bool = False,
    search: str | None = None,
    trials: int | None = None,
    prune: bool = False,
    own: Sequence[str] | None = None,
    **batch: Any,
) -> int | str:
    """Run, continue, list or submit a sweep.

    words: `[JOB.toml ...] --field value,value ...`, or the folder of a sweep to continue.
    overlays: job files whose fields override those of each job file.
    batch: options of an array job.
    search, trials: how values of ranges are drawn, and how many times.
    prune: whether hopeless trials are ended.
    own: methods and models outside hpcfed that a continued sweep may import.
    Returns the exit status: 0 all done, 1 some failed, 75 stopped and saved; with a task that of
    its run. With submit, returns the text to be printed.
    """
    check_counts(ranks, at_once, trials)
    check_prune(prune, search)
    check_batch(submit, task, batch)
    if search or trials:
        refuse_search(words, overlays or (), search, task, submit, dry_run)
        spans, n = ranges(words, overlays or ()), trials or TRIALS
        if search == "optuna":
            outcomes = search_by_optuna(
                words, overlays or (), out, ranks or 1, launcher or "", at_once, spans, n, prune
            )
            failed = any(outcome.failed for outcome in outcomes)
            unfinished = any(outcome.unfinished for outcome in outcomes)
            return RESUME_ME if unfinished else FAULT if failed else DONE
        draws = [draw(spans, i) for i in range(n)]
    else:
        draws = []
    if own and not goes_on(words):
        raise ConfigError(
            "sweep: --own is for the folder of a sweep, whose file may name modules; the flags and "
            "job files of a new sweep name them themselves: remove --own"
        )
    definition = (
        reopen_sweep(words, overlays or (), out, ranks, launcher, submit)
        if goes_on(words)
        else define_sweep(words, overlays or (), out, ranks or 1, launcher or "", draws)
    )
    tasks = select_tasks(definition, task)
    if goes_on(words):
        check_same_jobs(definition, tasks, own or ())
    check_own_code(definition, tasks, own if goes_on(words) else None)
    if submit:
        return submit_sweep(
            definition, dry_run, ranks=ranks, launcher=launcher, at_once=at_once, **batch
        )
    places = at_once or runs_at_once(definition)
    if dry_run:
        return preview(definition, places)
    start(definition)
    return one(definition, tasks[0]) if task is not None else all_of(definition, places)


def goes_on(words: Sequence[str]) -> bool:
    """Return whether the words are the folder of a sweep: no job file, no flags."""
    return len(words) == 1 and not words[0].startswith("-") and not words[0].endswith(".toml")


def reopen_sweep(
    words: Sequence[str],
    overlays: Sequence[Path],
    out: Path | None,
    ranks: int | None,
    launcher: str | None,
    submit: bool,
) -> Sweep:
    """Return the sweep in that folder, as it was defined.

    Its file is data, no program: raises ConfigError for a launcher that only the file names, and
    for another directory than the current one, from which Python would import modules.
    """
    definition = read(Path(words[0]))
    if definition.launcher and launcher is None and not submit:
        raise ConfigError(
            f"sweep: {definition.folder} would start its runs by {definition.launcher!r}, a "
            "command that only its file names; name it yourself: "
            f"--launcher {shlex.quote(definition.launcher)}"
        )
    if not os.path.isdir(definition.directory):
        raise ConfigError(
            f"sweep: no folder {definition.directory}, in which its runs start; "
            f"define the sweep again"
        )
    if not os.path.samefile(definition.directory, os.curdir):
        raise ConfigError(
            f"sweep: the runs of {definition.folder} start in {definition.directory}, where Python "
            f"may find modules to import; go there first: cd {shlex.quote(definition.directory)}"
        )
    if overlays:
        raise ConfigError(
            f"sweep: --with {overlays[0]}, but a sweep continues with the jobs it has; remove it"
        )
    if out:
        raise ConfigError(
            f"sweep: --out {out}, but a sweep continues in its own folder, {definition.folder}; "
            "remove it"
        )
    changes: dict[str, Any] = {"ranks": ranks, "launcher": launcher}
    return replace(
        definition, **{name: value for name, value in changes.items() if value is not None}
    )


def define_sweep(
    words: Sequence[str],
    overlays: Sequence[Path],
    out: Path | None,
    ranks: int,
    launcher: str,
    trials: Sequence[Values] = (),
) -> Sweep:
    """Return the sweep of a command line, which may add runs to the one in its folder, at its end.

    trials: of a search.
    """
    folder = folder_of(words, overlays, out)
    definition = define(words, folder, ranks, launcher, overlays, trials)
    if exists(folder):
        old = read(folder)
        agree(old, definition)
        definition = with_numbers_of(old, definition)
    return definition


def folder_of(words: Sequence[str], overlays: Sequence[Path], out: Path | None) -> Path:
    """Return the folder of a sweep."""
    files, _ = split_files(words)
    name = (
        files[0].resolve().parent.name if len(files) > 1 else files[0].stem if files else "default"
    )
    return out or Path("runs") / "-".join(["sweep", name, *(path.stem for path in overlays)])


def check_counts(ranks: int | None, at_once: int | None, trials: int | None) -> None:
    """Raise ConfigError for a number below 1."""
    for name, number in {"--ranks": ranks, "--at-once": at_once, "--trials": trials}.items():
        if number is not None and number < 1:
            raise ConfigError(f"sweep: {name} {number}: give at least 1")


def check_prune(prune: bool, search: str | None) -> None:
    """Raise ConfigError for pruning without the search that can do it."""
    if prune and search != "optuna":
        raise ConfigError(
            "sweep: --prune compares a trial with those before it, as --search optuna makes them; "
            "add that, or remove --prune"
        )


def refuse_search(
    words: Sequence[str],
    overlays: Sequence[Path],
    search: str | None,
    task: int | None,
    submit: bool,
    dry_run: bool,
) -> None:
    """Raise ConfigError for a search without ranges, or with incompatible options."""
    if not search:
        raise ConfigError("sweep: --trials is of a search; add --search random")
    if goes_on(words):
        raise ConfigError(
            f"sweep: --search, but {words[0]} is a sweep, which continues with the runs it has; "
            f"remove --search and --trials, or give the words that it began with"
        )
    if not ranges(words, overlays):
        raise ConfigError(
            "sweep: --search, but no field has a range; write one as --local.lr log:0.0001..0.1"
        )
    if search == "optuna" and (task is not None or submit or dry_run):
        raise ConfigError(
            "sweep: with --search optuna each run follows from those before, so that they are no "
            "tasks of an array job and cannot be listed before; take --search random"
        )
    if search == "optuna" and len(files := split_files(words)[0]) > 1:
        raise ConfigError(
            f"sweep: --search optuna searches for one job at a time, but {files[0]} and "
            f"{files[1]} are two; give one job file, or take --search random"
        )
    if search == "optuna" and (more := [name for name in varied(words) if name != "seed"]):
        raise ConfigError(
            f"sweep: --search optuna searches for one job at a time, but {more[0]} has several "
            f"values; name one, or take --search random"
        )


def search_by_optuna(
    words: Sequence[str],
    overlays: Sequence[Path],
    out: Path | None,
    ranks: int,
    launcher: str,
    at_once: int | None,
    spans: Mapping[str, Range],
    n: int,
    prune: bool = False,
) -> list[Outcome]:
    """Run trials one after the other, each over all seeds, and return how their runs ended.

    Trials in the folder are continued first, but for those that were pruned. If Optuna proposes
    values once more, the next new ones of a random search are tried. The search stops with a trial
    of which a run remains unfinished, and once all values have been tried.
    """
    folder, arguments = folder_of(words, overlays, out), (words, overlays, out, ranks, launcher)
    tried = known_trials(read(folder), spans) if exists(folder) else []
    outcomes: list[Outcome] = []
    for i in range(max(n, len(tried))):
        if i == len(tried):
            before = trials_of(define_sweep(*arguments, tried), tried) if tried else []
            values: Values | None = propose(spans, before)
            if values in tried:
                values = draw_untried(spans, tried, i)
            if values is None:
                print(printable(f"search: ends after {i} of {n} trials: {all_tried(spans)}"))
                break
            tried.append(values)
        definition = define_sweep(*arguments, tried)
        start(definition)
        mine = runs_of(definition, tried[i])
        open_ = [j for j in mine if not is_finished(definition, definition.runs[j])]
        open_ = [] if was_pruned(definition, mine) else open_
        if open_:
            hopeless = Judge(trials_of(definition, tried[:i]), definition) if prune else None
            outcomes += Pool(definition, at_once or runs_at_once(definition), hopeless).run(open_)
            if any(outcome.unfinished for outcome in outcomes):
                break
    return outcomes


def all_tried(spans: Mapping[str, Range]) -> str:
    """Return in words that these ranges have no values that were not tried."""
    return f"all values of {join_few(list(spans), 3)} have been tried; widen a range for more"


def known_trials(definition: Sweep, spans: Mapping[str, Range]) -> list[Values]:
    """Return the trials of a sweep, in the order in which they were proposed."""
    trials: list[Values] = []
    fields = {name: f"--{field_of(name)}" for name in spans}
    for run in definition.runs:
        flags = dict(zip(run.words[::2], run.words[1::2], strict=False))
        values = {name: flags[word] for name, word in fields.items() if word in flags}
        if len(values) == len(spans) and values not in trials:
            trials.append(values)
    return trials


def runs_of(definition: Sweep, values: Values) -> list[int]:
    """Return the numbers of the runs of a trial."""
    wanted = {(f"--{field_of(name)}", value) for name, value in values.items()}
    return [
        j
        for j, run in enumerate(definition.runs)
        if wanted <= set(zip(run.words[::2], run.words[1::2], strict=False))
    ]


def field_of(name: str) -> str:
    """Return the field of a flag's name: algorithm.mu of fedprox.mu, in a search of one method."""
    return f"algorithm.{name.rpartition('.')[2]}" if is_own(name) else name


def was_pruned(definition: Sweep, numbers: Sequence[int]) -> bool:
    """Return whether one of these runs of a trial was ended because it is hopeless."""
    return any(is_pruned(definition, definition.runs[j]) for j in numbers)


def trials_of(definition: Sweep, tried: Sequence[Values]) -> list[Trial]:
    """Return these trials of a sweep with their scores and curves."""
    trials = []
    for values in tried:
        mine = runs_of(definition, values)
        pruned = was_pruned(definition, mine)
        score = None if pruned else score_of(definition, values)
        trials.append(Trial(values, score, curve_of(definition, mine[0]), pruned))
    return trials


def curve_of(definition: Sweep, number: int) -> dict[int, float]:
    """Return the validation score by round of a run; {} if it has no readable results."""
    try:
        return score_by_round(load(definition.folder / definition.runs[number].name))
    except CheckpointError:
        return {}


class Judge:
    """Says of a run of a trial whether it is hopeless, by the trials before.

    Results are read again only after they have changed.
    """

    def __init__(self, before: Sequence[Trial], definition: Sweep):
        self.before, self.definition = before, definition
        self.stamps: dict[str, Any] = {}

    def __call__(self, run: Member) -> bool:
        now = stamp(self.definition.folder / run.name)
        if self.stamps.get(run.name) == now:
            return False
        self.stamps[run.name] = now
        curve = curve_of(self.definition, self.definition.runs.index(run))
        return is_hopeless(self.before, curve)


def score_of(definition: Sweep, values: Values) -> float | None:
    """Return the validation score of a trial, mean over seeds; None if a run is not finished."""
    runs = [definition.runs[j] for j in runs_of(definition, values)]
    if not all(is_finished(definition, run) for run in runs):
        return None
    return sum(score(load(definition.folder / run.name)) for run in runs) / len(runs)


def preview(definition: Sweep, places: int) -> int:
    """Print the runs of a sweep; nothing is started or written."""
    rows = [
        (i, run.name, "finished" if is_finished(definition, run) else "to run")
        for i, run in enumerate(definition.runs)
    ]
    console().print(table(">task,run,", rows))
    print(printable(describe_sweep(definition, places)))
    return DONE


def describe_sweep(definition: Sweep, places: int) -> str:
    """Return a description of the sweep in one line."""
    runs = count_noun(len(definition.runs), "run")
    ranks = count_noun(definition.ranks, "rank")
    return f"{runs} in {definition.folder}, {places} at a time, {ranks} each"


def start(definition: Sweep) -> None:
    """Make the folder, check that the runs can be started, and write the definition.

    Raises ConfigError if they cannot.
    """
    launcher(definition)
    make(definition.folder)
    if not exists(definition.folder) or read(definition.folder) != definition:
        write(definition)


def submit_sweep(definition: Sweep, dry_run: bool, **resources: Any) -> str:
    """Submit an array job, or with dry_run return its script."""
    from hpcfed.launch.sweep import batch

    definition, text = batch.plan_batch(definition, **resources)
    if dry_run:
        return text.rstrip("\n")
    make(definition.folder)
    write(definition)
    return batch.submit(definition, text)


def check_batch(submit: bool, task: int | None, batch: Mapping[str, Any]) -> None:
    """Raise ConfigError for options of an array job without one, or for one of its tasks alone.

    batch: the options by name; those that are not given are None, and nodes is 1.
    """
    usual = {"nodes": 1}
    flags = [
        f"--{name.replace('_', '-')}" for name, value in batch.items() if value != usual.get(name)
    ]
    if flags and not submit:
        raise ConfigError(
            f"sweep: {join_few(flags, 3)}: of an array job, but without --submit the runs start "
            f"here, now; add --submit, or remove {'it' if len(flags) == 1 else 'them'}"
        )
    if submit and task is not None:
        raise ConfigError(
            f"sweep: --task {task} does one run here, and --submit hands all to Slurm; remove one"
        )


def select_tasks(definition: Sweep, task: int | None) -> Sequence[int]:
    """Return the numbers of the runs to be done: all, or one."""
    n = store.array_size(definition)
    if task is not None and not 0 <= task < n:
        raise ConfigError(
            f"sweep: --task {task}, but {definition.folder} has the tasks 0 to {n - 1}"
        )
    return range(n) if task is None else [task]


def check_same_jobs(definition: Sweep, tasks: Sequence[int], allowed: Sequence[str]) -> None:
    """Raise ConfigError if unfinished runs would have other jobs now.

    The job file, or the environment, may have changed since the sweep was defined. Their rounds
    must be those of the definition, which says when a run is finished.
    allowed: methods and models outside hpcfed that the user names; others are refused before they
    are imported.
    """
    where = f"sweep: {names.sweep_file(definition.folder)}"
    only = Importable(
        allowed, where, method="--own", model="--own", metric="--own", callback="--own"
    )
    may_change = [name for name in MAY_CHANGE if name != "rounds"]
    for run in (definition.runs[i] for i in tasks):
        if not is_finished(definition, run):
            fields = job_of([*definition.words, *run.words], only)
            check_same_job(run, fields, definition.folder, may_change)


def check_own_code(definition: Sweep, tasks: Sequence[int], allowed: Sequence[str] | None) -> None:
    """Raise ConfigError if users' code has changed since a run of the sweep was finished.

    Runs that are continued are checked when they continue.
    allowed: methods and models that may be imported; None: those of all runs.
    """
    for run in (definition.runs[i] for i in tasks):
        if not is_finished(definition, run) or run.fields.get("own_changed"):
            continue
        stored = load(definition.folder / run.name).header.get("own", {})
        names = [name for name in own_code(run) if allowed is None or name in allowed]
        now = digests(own_names("", names))
        differ = changed(stored, now)
        if differ:
            raise ConfigError(
                changed_code.refusal(differ, f"run {run.name} of {definition.folder}")
            )


def one(definition: Sweep, task: int) -> int:
    """Do one run, as a task of an array job, and return its exit status."""
    status = Pool(definition, 1).run([task])[0].status
    return status if status >= 0 else RESUME_ME


def all_of(definition: Sweep, places: int) -> int:
    """Do all runs, `places` at a time, and print those that are not done at the end."""
    print(printable(describe_sweep(definition, places)), flush=True)
    outcomes = Pool(definition, places).run(range(len(definition.runs)))
    failed = [outcome for outcome in outcomes if outcome.failed]
    unfinished = [outcome for outcome in outcomes if outcome.unfinished]
    print_outcomes(failed, "failed; their output is in " + str(definition.folder / "logs"))
    print_outcomes(unfinished, f"not finished; continue with {continuing(definition)}")
    return FAULT if failed else RESUME_ME if unfinished else DONE


def print_outcomes(outcomes: list[Outcome], what: str) -> None:
    if outcomes:
        print(printable(f"{len(outcomes)} {what}"))
        for outcome in outcomes:
            state = "not started" if outcome.status == LEFT else outcome.line
            print(printable(f"  {outcome.run.name}: {state}"))
