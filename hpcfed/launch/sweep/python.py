"""`hpcfed.sweep(...)`: a sweep from a script or notebook, with its own classes, functions and data.

The call is translated to the words of `hpcfed sweep`, so that both define the same sweep. Runs that
need what only this process has are done here, one after the other; others as the command does them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hpcfed.config.fields import format_flag_value
from hpcfed.config.load import load
from hpcfed.core import user_code
from hpcfed.core.errors import ConfigError, HpcfedError, StoppedError, printable
from hpcfed.core.exit_status import DONE, FAULT, RESUME_ME
from hpcfed.core.wording import join_few
from hpcfed.engine import folder
from hpcfed.engine.fault_tolerance.supervise import onward
from hpcfed.launch.given import SHORT, Call, check_importable, is_data, job_of, nested
from hpcfed.launch.python import forget_own_models, here, own_folder
from hpcfed.launch.sweep.command import (
    check_counts,
    check_own_code,
    check_prune,
    define_sweep,
    describe_sweep,
    folder_of,
    refuse_search,
    search_by_optuna,
    start,
)
from hpcfed.launch.sweep.grid import ranges, takes_list, varied
from hpcfed.launch.sweep.launch import is_finished
from hpcfed.launch.sweep.pool import (
    Outcome,
    Pool,
    describe_result,
    print_begin,
    print_line,
    runs_at_once,
)
from hpcfed.launch.sweep.search import TRIALS, draw
from hpcfed.results.run import Run, find
from hpcfed.storage.fields import flat
from hpcfed.storage.sweep import Sweep

AGAIN = "the same call of hpcfed.sweep continues"


def sweep(
    job: Any = None,
    *,
    overlays: Sequence[str | Path] = (),
    out: str | Path | None = None,
    at_once: int | None = None,
    ranks: int = 1,
    launcher: str = "",
    search: str | None = None,
    trials: int | None = None,
    prune: bool = False,
    **fields: Any,
) -> list[Run]:
    """Run all combinations of values of fields, and return the runs: `hpcfed sweep` from Python.

    job: path of a job file, or several, of which each is run with all combinations. fields: of the
    job, as `hpcfed.run` takes them; a list holds the values to be combined: `seed=[0, 1, 2]`,
    `algorithm=["fedavg", Mine(mu=0.1), {"name": "fedprox", "mu": [0.1, 1]}]`. The value of a field
    that is a list itself is one value, and a list of lists are several: `model=[["mlp"], ["cnn"]]`.
    The other arguments are those of `hpcfed sweep`. A further call with the same arguments
    continues unfinished runs and skips finished ones; one with more values adds runs.

    With methods or models that are defined in this script or notebook the runs are done one after
    the other in this process, otherwise `at_once` of them at a time.
    Raises HpcfedError if a run has failed, after all others; KeyboardInterrupt for Ctrl-C.
    """
    call = Call(None, {})
    files, table = job_of(job)
    words, below = [*map(str, files), *flags(call, table | fields)], [*map(Path, overlays)]
    place = Path(out) if out is not None else None
    with user_code.lend(call.lent), own_folder():
        forget_own_models()
        if ranks > 1 or launcher:
            check_importable(call.lent, ranks)
        if not (search or varied(words) or files[1:]):
            raise ConfigError(
                "hpcfed.sweep: no field has several values; give a list, as in seed=[0, 1, 2], or "
                "take hpcfed.run"
            )
        check_counts(ranks, at_once, trials)
        check_prune(prune, search)
        if search or trials:
            refuse_search(words, below, search, None, False, False)
        spans, n = ranges(words, below), trials or TRIALS
        if search == "optuna":
            if call.lent:
                raise ConfigError(
                    "hpcfed.sweep: search = 'optuna' starts processes, which cannot import "
                    f"{next(iter(call.lent))}; move it into a file of its own, or take 'random'"
                )
            outcomes = search_by_optuna(
                words, below, place, ranks, launcher, at_once, spans, n, prune
            )
            check_outcomes(outcomes)
            return find([folder_of(words, below, place)])
        draws = [draw(spans, i) for i in range(n)] if search == "random" else []
        definition = define_sweep(words, below, place, ranks, launcher, draws)
        check_own_code(definition, range(len(definition.runs)), None)
        call.store(load([*definition.words, *definition.runs[0].words]))
        start(definition)
        if call.lent:
            outcomes = [one_here(definition, i) for i in range(len(definition.runs))]
        else:
            places = at_once or runs_at_once(definition)
            print(printable(describe_sweep(definition, places)), flush=True)
            outcomes = Pool(definition, places).run(range(len(definition.runs)))
    check_outcomes(outcomes)
    return find([definition.folder])


def flags(call: Call, fields: Mapping[str, Any]) -> list[str]:
    """Return the flags of `hpcfed sweep` for the fields of a call.

    call: takes the classes, functions and data among the values.
    Raises ConfigError for an empty list, or a list of tables.
    """
    words: list[str] = []
    for name, value in dotted(fields):
        refuse_empty(name, value)
        if name == "algorithm":
            words += method_flags(call, value if isinstance(value, list) else [value])
            continue
        refuse_tables(name, value)
        several = takes_list(name, [])
        nests = isinstance(value, list) and (
            all(isinstance(v, list | tuple) for v in value)
            if several
            else name != "data" or all(isinstance(v, str | Path) for v in value)
        )
        values = value if nests else [value]
        plain = [flat(call.plain(nested({name: v}))) for v in values]
        for field in plain[0]:
            texts = [format_flag_value(as_list(each[field])) for each in plain]
            words += [f"--{field}", join(texts, several)]
    return words


def dotted(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield fields by dotted names; `algorithm` and data stay one value."""
    for name, value in fields.items():
        short = SHORT.get(name, name)
        if isinstance(value, Mapping) and name != "algorithm" and not is_data(value):
            yield from dotted({f"{short}.{part}": each for part, each in value.items()})
        else:
            yield ("data" if short == "data.name" else short), value


def refuse_empty(name: str, value: Any) -> None:
    """Raise ConfigError for a list without values, from which no run follows."""
    if isinstance(value, list) and not value:
        raise ConfigError(
            f"hpcfed.sweep: {name} = []: a list holds the values to be combined, and this one has "
            f"none; give at least one, or remove {name}"
        )


def refuse_tables(name: str, value: Any) -> None:
    """Raise ConfigError for a list of tables, of which only the fields could be combined."""
    tables = (
        [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
    )
    if tables:
        field = next(iter(tables[0]), "field")
        raise ConfigError(
            f"hpcfed.sweep: {name}: a list of tables; give the field itself a list, as in "
            f'{name} = {{"{field}": [...]}}, or make a sweep of each table'
        )


def method_flags(call: Call, items: Sequence[Any]) -> list[str]:
    """Return the flags of methods, each a name, a class, an object, or a table with parameters.

    Raises ConfigError for parameters of one method that are not all combinations of their values.
    """
    methods: dict[str, list[dict[str, str]]] = {}
    for item in items:
        choices = {"name": [item]}
        if isinstance(item, Mapping):
            choices = {key: v if isinstance(v, list) else [v] for key, v in item.items()}
        for key, alternatives in choices.items():
            refuse_empty(f"algorithm.{key}", alternatives)
        for values in product(*choices.values()):
            one = dict(zip(choices, values, strict=True))
            method = one if isinstance(item, Mapping) else item
            table = call.plain(nested({"algorithm": method}))["algorithm"]
            texts = {key: format_flag_value(as_list(v)) for key, v in table.items()}
            methods.setdefault(texts.pop("name", ""), []).append(texts)
    words = ["--algorithm.name", ",".join(methods)] if any(methods) else []
    for name, tables in methods.items():
        keys = list(dict.fromkeys(key for table in tables for key in table))
        of_key = {key: list(dict.fromkeys(table.get(key, "") for table in tables)) for key in keys}
        different = {tuple(table.get(key, "") for key in keys) for table in tables}
        if different != set(product(*of_key.values())) or any("" in v for v in of_key.values()):
            raise ConfigError(
                f"hpcfed.sweep: algorithm: the objects of {name} are not all combinations of "
                f"{' and '.join(keys)}; make a sweep of each, or give all combinations"
            )
        prefix = f"{name}." if len(methods) > 1 else "algorithm."
        for key in keys:
            words += [f"--{prefix}{key}", join(of_key[key], False)]
    return words


def join(texts: Sequence[str], several: bool) -> str:
    """Return alternatives as a sweep separates them. several: whether each is a list."""
    if several or any("," in text for text in texts):
        return ";".join(texts) + (";" if len(texts) == 1 and not several else "")
    return ",".join(texts)


def as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def one_here(definition: Sweep, i: int) -> Outcome:
    """Do one run in this process, unless it is finished, and print how it ended."""
    run = definition.runs[i]
    place = definition.folder / run.name
    if is_finished(definition, run):
        return Outcome(run, DONE, "finished before")
    words = [*definition.words, *run.words, "--out", str(place), *onward(place)]
    print_begin(definition, i)
    try:
        status, number = here(load(words, folder.read_job))
    except HpcfedError as error:
        outcome = Outcome(run, FAULT, f"failed: {error}")
    else:
        if number == signal.SIGINT:
            raise KeyboardInterrupt(f"the runs are saved in {definition.folder}; {AGAIN}")
        if status == RESUME_ME or number is not None:
            raise StoppedError(f"the runs are saved in {definition.folder}; {AGAIN}")
        outcome = Outcome(run, DONE, describe_result(place))
    print_line(i, run, outcome.line.splitlines()[0])
    return outcome


def check_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Raise HpcfedError if runs have failed, KeyboardInterrupt if some are not finished."""
    reasons: dict[str, list[str]] = {}
    for one in outcomes:
        if one.failed:
            reasons.setdefault(one.line, []).append(one.run.name)
    if reasons:
        n = sum(map(len, reasons.values()))
        lines = [f"  {join_few(names, 4)}: {line}" for line, names in reasons.items()]
        head = f"hpcfed.sweep: {n} of {len(outcomes)} runs failed; {AGAIN}"
        raise HpcfedError("\n".join([head, *lines]))
    if any(one.unfinished for one in outcomes):
        raise KeyboardInterrupt(f"not all runs are finished; {AGAIN}")
