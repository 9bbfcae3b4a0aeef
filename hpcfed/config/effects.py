"""Which fields of a job have no effect, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from hpcfed.config.conditions import Check, Scope, UsedIf, conditions, value_text
from hpcfed.config.fields import default_of, is_part
from hpcfed.config.layers import DEFAULT, STORED, Layer, has
from hpcfed.core.errors import ConfigError
from hpcfed.storage.fields import flat

if TYPE_CHECKING:
    from hpcfed.config.job import Job


@dataclass(frozen=True)
class Idle:
    """A field without effect.

    why: the reason.
    condition: under which it had one, in words; "" if no field decides it.
    section: the section of the job that states it.
    refused: whether the job is refused.  by: the fields that decide it, by name.
    """

    why: str
    condition: str = ""
    section: str = "algorithm"
    refused: bool = True
    by: tuple[str, ...] = ()


class Effects:
    """The conditions of a job's fields, evaluated with the values of the job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stated: dict[str, list[tuple[Scope, UsedIf]]] = {}
        for table, section in tables(job):
            for path, parts in conditions_of_table(table, type(section), type(job)).items():
                self.stated.setdefault(path, []).extend(parts)

    def idle(self, path: str, within: frozenset[str] = frozenset()) -> Idle | None:
        """Return why a field has no effect, None if it has one.

        within: fields whose conditions led to this one. Checks of them are left out, for conditions
        may form a cycle.
        """
        for scope, condition in self.stated.get(path, ()):
            failures = []
            for alternative in condition.alternatives:
                failure = self.failure(path, scope, alternative, within)
                if not failure:
                    break
                failures.append(failure)
            else:
                why = condition.why or " and ".join(dict.fromkeys(failures))
                section, text = scope.prefix.rstrip("."), scope.text(condition)
                by = tuple(scope.path(name) for name, _ in condition.checks())
                return Idle(why, text, section, condition.refused, by)
        return None

    def failure(
        self, path: str, scope: Scope, checks: dict[str, Check], within: frozenset[str]
    ) -> str:
        """Return by what an alternative of the condition of a field fails, "" if it holds."""
        for name, check in checks.items():
            other = scope.path(name)
            if other in within:
                continue
            idle = self.idle(other, within | {path}) if other != path else None
            if idle:
                return idle.why
            value, bound, beside = self.value(other), check.bound, ""
            if check.field:
                bound = self.value(scope.path(check.field))
                beside = f" and {scope.path(check.field)} = {value_text(bound)}"
            if not check.holds(value, bound):
                return f"{other} = {value_text(value)}{beside}"
        return ""

    def value(self, path: str) -> Any:
        value: Any = self.job
        for part in path.split("."):
            value = getattr(value, part)
        return value


@cache
def conditions_of_table(
    table: str, section: type[BaseModel], job: type[BaseModel]
) -> dict[str, list[tuple[Scope, UsedIf]]]:
    """Return the conditions that a table of a job states, by the dotted name of the field."""
    scope = Scope(section, job, f"{table}.")
    by_path: dict[str, list[tuple[Scope, UsedIf]]] = {}
    for name, parts in conditions(section).items():
        if parts:
            by_path.setdefault(scope.path(name), []).extend((scope, part) for part in parts)
    return by_path


def tables(part: BaseModel, prefix: str = "") -> Iterator[tuple[str, BaseModel]]:
    """Yield all tables of a job with their dotted names, each before those inside it."""
    for name in names_of_fields(type(part)):
        value = getattr(part, name)
        if isinstance(value, BaseModel):
            yield f"{prefix}{name}", value
            yield from tables(value, f"{prefix}{name}.")


@cache
def names_of_fields(section: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of a section's fields; pydantic looks them up anew each time."""
    return tuple(section.model_fields)


def refuse_idle_fields(job: Job) -> None:
    """Raise ConfigError for fields that the job sets, though they change nothing in it."""
    if lines := list(idle_fields(job)):
        raise ConfigError("\n".join(lines))


def idle_fields(job: Job) -> Iterator[str]:
    """Yield a message for each field that is set and has no effect.

    A value of the preset or of the method's own defaults is not set by the user.
    """
    method, effects = job.algorithm.name, Effects(job)
    reasons = {name: Idle(why) for name, why in job.algorithm.refuses(job).items()}
    usual, others = defaults(job), job.sources()
    for name, value in flat(job.plain()).items():
        if name in others or name not in usual or value == usual[name]:
            continue
        idle = reasons.get(name) or effects.idle(name)
        if idle and idle.refused:
            by = f"{method}: " if idle.section == "algorithm" else ""
            hint = f"; it is used only if {idle.condition}" if idle.condition else ""
            yield (
                f"{by}{name} = {format_value(value)} has no effect: {idle.why}\n"
                f"  remove it, or set its default, {format_value(usual[name])}{hint}"
            )


def fields_in_vain(job: Job) -> Iterator[str]:
    """Yield a line for each field without effect that is set beside what decides that, or above.

    A job file may set fields of several partitions, of which a flag chooses one: that is meant.
    """
    effects, usual = Effects(job), defaults(job)
    layers = of_user(job)
    for name, value in flat(job.plain()).items():
        idle = effects.idle(name) if name in usual and value != usual[name] else None
        if idle and not idle.refused:
            level = next((i for i, layer in enumerate(layers) if has_field(layer, name)), None)
            further = (effects.idle(by) for by in idle.by)  # what decides about those fields
            decisive = {*idle.by, *(by for other in further if other for by in other.by)}
            deciding = (i for i, at in enumerate(layers) for by in decisive if has_field(at, by))
            if level is not None and level <= min(deciding, default=level):
                yield f"{name} = {format_value(value)} has no effect with {idle.why}"


def of_user(job: Job) -> list[Layer]:
    """Return the layers of a job in which the user has set values."""
    return [layer for layer in job._layers if not layer.name.startswith(("preset ", STORED))]


def is_set(job: Job, name: str) -> bool:
    """Return whether the user has set the field of this dotted name, be it to its default."""
    return any(has_field(layer, name) for layer in of_user(job) if layer.name != DEFAULT)


def has_field(layer: Layer, name: str) -> bool:
    """Return whether a layer sets the field of this dotted name."""
    return has(layer.values, name.split("."))


def defaults(job: Job) -> dict[str, Any]:
    """Return the defaults of the fields of the job's sections, by name."""
    values: dict[str, Any] = {}
    for table, section in tables(job):
        values |= table_defaults(table, type(section))
    for implied in job.implied.values():
        values |= {name: to_jsonable_python(value) for name, value in implied.items()}
    return values


@cache
def table_defaults(table: str, section: type[BaseModel]) -> dict[str, Any]:
    """Return the defaults of the fields of a table that are no tables, by dotted name.

    Fields without a default, or whose default other fields decide, are left out.

    table: its name; "" for the job.
    """
    above = f"{table}." if table else ""
    return {
        f"{above}{name}": to_jsonable_python(default)
        for name, field in section.model_fields.items()
        if not is_part(field.annotation) and (default := default_of(field)) is not PydanticUndefined
    }


def format_value(value: Any) -> str:
    """Return a value as it is written in a job file."""
    return "none" if value is None else json.dumps(value)
