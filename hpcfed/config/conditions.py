"""Conditions under which a field of a job has an effect, as data beside the field.

    tau: PositiveFloat = field(0.07, used_if="contrastive")

A condition is one of these:

    "contrastive"                       the field is set: true, a number but 0, not empty
    {"staleness": "hinge"}              the field has this value
    {"staleness": ("poly", "hinge")}    the field has one of these values
    {"groups": above(1)}                a check: above, below, at_most, other_than, UNSET, SEVERAL
    {"share": "head", "rho": above(0)}  all of these
    ("intra", "inter")                  at least one of these conditions

A name is a field or a property of the section that states the condition, or else a field of the
job, such as "rounds" or "local.steps". A field that itself has no effect meets no condition.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from hpcfed.config.field_docs import field_doc
from hpcfed.config.limits import kinds_of

T = TypeVar("T")
Condition = str | Mapping[str, Any] | tuple[str | Mapping[str, Any], ...]
COMPARE = {">": operator.gt, "<": operator.lt, "<=": operator.le, "!=": operator.ne}


@dataclass(frozen=True)
class Check:
    """A test of a field's value.

    sign: a sign of COMPARE, "=", "is set", "is not set" or "has several values".
    bound: a number, or the name of a field that has it; for = and != the values, a tuple.
    """

    sign: str
    bound: Any = None

    @property
    def field(self) -> str | None:
        """The name of the field that is the bound, if it is one."""
        return self.bound if isinstance(self.bound, str) else None

    def holds(self, value: Any, bound: Any) -> bool:
        """Return whether a value passes.

        bound: a number, or the values.
        Of several values one has to be in the bounds; none is in no bounds.
        """
        if self.sign in ("is set", "is not set"):
            return bool(value) == (self.sign == "is set")
        if self.sign == "has several values":
            return len(set(value)) > 1
        if self.sign in ("=", "!="):
            return (value in bound) == (self.sign == "=")
        values = value if isinstance(value, tuple) else (value,)
        return any(v is not None and COMPARE[self.sign](v, bound) for v in values)


SET, UNSET, SEVERAL = Check("is set"), Check("is not set"), Check("has several values")


def above(bound: float | str) -> Check:
    """The value is larger than a number, or than that of another field."""
    return Check(">", bound)


def below(bound: float | str) -> Check:
    """The value is smaller than a number, or than that of another field."""
    return Check("<", bound)


def at_most(bound: float | str) -> Check:
    """The value is not larger than a number, or than that of another field."""
    return Check("<=", bound)


def other_than(*values: Any) -> Check:
    """The field has none of these values."""
    return Check("!=", values)


@dataclass(frozen=True)
class UsedIf:
    """When a field has an effect.

    alternatives: checks by the name of a field; all checks of one alternative have to pass. No
    alternative: the field never has an effect.
    why: the reason in refusals; "": the values by which the condition fails.
    refused: whether a job is refused that sets the field in vain. Otherwise a run warns of it, if
    the field is set beside what decides its effect, or above it.
    """

    alternatives: tuple[dict[str, Check], ...]
    why: str = ""
    refused: bool = True

    def checks(self) -> Iterator[tuple[str, Check]]:
        """Yield all checks with the name of their field."""
        for alternative in self.alternatives:
            yield from alternative.items()


# fields without effect, with the reason, or with the condition under which they have one
Unused = Mapping[str, str | UsedIf]


def field(default: T, *, used_if: Condition, why: str = "", refused: bool = True) -> T:
    """Return the default of a field that has an effect only under a condition.

    why: reason in the refusal of a job that sets the field in vain, if the values of the other
    fields do not say enough.
    refused: as in UsedIf.
    """
    info: Any = Field(default)
    info.metadata.append(replace(unless(used_if, why), refused=refused))
    return info


def unless(condition: Condition, why: str = "") -> UsedIf:
    """Return an entry of `unused`: the field has an effect only under this condition."""
    alternatives = condition if isinstance(condition, tuple) else (condition,)
    return UsedIf(tuple(map(checks_by_name, alternatives)), why)


def checks_by_name(condition: str | Mapping[str, Any]) -> dict[str, Check]:
    if isinstance(condition, str):
        return {condition: SET}
    return {name: as_check(value) for name, value in condition.items()}


def as_check(value: Any) -> Check:
    if isinstance(value, Check):
        return value
    return Check("=", value if isinstance(value, tuple) else (value,))


@cache
def conditions(section: type[BaseModel]) -> dict[str, list[UsedIf]]:
    """Return the conditions that a section states, by the name that it has for the field.

    These are those of its fields, and those in `unused` of a method and of its bases.
    """
    stated: dict[str, list[UsedIf]] = {
        name: [part for part in info.metadata if isinstance(part, UsedIf)]
        for name, info in section.model_fields.items()
    }
    unused = {k: v for c in reversed(section.__mro__) for k, v in vars(c).get("unused", {}).items()}
    for name, reason in unused.items():
        condition = reason if isinstance(reason, UsedIf) else UsedIf((), reason)
        stated[name] = [*stated.get(name, []), condition]
    return {name: parts for name, parts in stated.items() if parts}


@dataclass(frozen=True)
class Scope:
    """Where conditions are stated, which decides what their names mean.

    prefix: stands before the names of the section's fields.
    """

    section: type[BaseModel]
    job: type[BaseModel]
    prefix: str = ""

    def path(self, name: str) -> str:
        """Return the name of a field or property in the job."""
        return f"{self.prefix}{name}" if has(self.section, name) else name

    def info(self, name: str) -> FieldInfo | None:
        """Return the description of a field; None if there is none, or for a property."""
        if name in self.section.model_fields:
            return self.section.model_fields[name]
        *tables, last = name.split(".")
        part: Any = self.job
        for table in tables:
            part = part.model_fields[table].annotation if table in part.model_fields else None
            if not (isinstance(part, type) and issubclass(part, BaseModel)):
                return None
        return part.model_fields.get(last)

    def exists(self, name: str) -> bool:
        return has(self.section, name) or has(self.job, name) or self.info(name) is not None

    def text(self, condition: UsedIf) -> str:
        """Return a condition in words: "contrastive = true", "staleness = 'poly' or 'hinge'"."""
        return " or ".join(
            " and ".join(self.check_text(name, check) for name, check in one.items())
            for one in condition.alternatives
        )

    def check_text(self, name: str, check: Check) -> str:
        path = self.path(name)
        if check == SET:
            return f"{path} {set_text(self.info(name))}"
        if check in (UNSET, SEVERAL):
            return f"{path} {check.sign}"
        if check.field:
            return f"{path} {check.sign} {self.path(check.field)}"
        values = check.bound if isinstance(check.bound, tuple) else (check.bound,)
        return f"{path} {check.sign} {' or '.join(map(value_text, values))}"


def has(section: type[BaseModel], name: str) -> bool:
    """Return whether a section has a field, a property or a class variable of this name."""
    return name in section.model_fields or not callable(getattr(section, name, has))


def set_text(info: FieldInfo | None) -> str:
    """Return what it means for a field of this type to be set, as it follows the field's name."""
    kinds = set(kinds_of(info.annotation)) if info else set()
    if info and bool in kinds:
        return "= true"
    if info and info.annotation in (int, float):
        return "> 0" if any(hasattr(bound, "ge") for bound in info.metadata) else "!= 0"
    return "is set"


def value_text(value: Any) -> str:
    """Return a value as messages show it: 'sgd', 0.1, true, none."""
    value = to_jsonable_python(value)
    return str(value).lower() if value is None or isinstance(value, bool) else repr(value)


def check_conditions(section: type[BaseModel], job: type[BaseModel]) -> None:
    """Raise ValueError for a condition of a section that can never be evaluated, or never hold.

    That is one that names a field that neither the section nor the job has, or a value that the
    field cannot have.
    """
    scope = Scope(section, job)
    choices = [*section.model_fields, *job.model_fields]
    for name, stated in conditions(section).items():
        place = f"{section.__name__}: the condition of {name}"
        checks = [(name, SET), *(pair for one in stated for pair in one.checks())]
        bounds = [(check.field, SET) for _, check in checks if check.field]
        for other, check in checks + bounds:
            if not scope.exists(other):
                raise ValueError(
                    f"{place} names {other!r}, which is not a field{near(other, choices)}"
                )
            info = scope.info(other)
            valid = choices_of(info.annotation) if info else ()
            for value in check.bound if valid and isinstance(check.bound, tuple) else ():
                if value not in valid:
                    raise ValueError(f"{place}: {other} is never {value!r}{near(value, valid)}")


def usage(section: type[BaseModel], name: str, job: type[BaseModel]) -> str:
    """Return when a field of a section has an effect, as a sentence; "" if always."""
    scope = Scope(section, job)
    texts = [
        f"Used only if {scope.text(one)}." if one.alternatives else f"No effect: {one.why}."
        for one in conditions(section).get(name, ())
    ]
    return " ".join(texts)


def meaning(section: type[BaseModel], name: str, job: type[BaseModel]) -> str:
    """Return the text of a field in one line, with the condition under which it has an effect."""
    text = " ".join(field_doc(section, name).split())
    return f"{text} {usage(section, name, job)}".strip()


def near(name: Any, choices: Any) -> str:
    best = get_close_matches(str(name), map(str, choices), n=1)
    return f"; did you mean {best[0]!r}?" if best else ""


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """Return the only values of a field, none if they are not listed."""
    kinds = list(kinds_of(annotation))
    literals = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    if bool in kinds:
        return (True, False)
    open_ = {int, float, str}.intersection(kinds)
    return (*literals, *([None] * (type(None) in kinds))) if literals and not open_ else ()
