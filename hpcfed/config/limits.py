"""The types of fields with their ranges, and the range of each field for its help."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from hpcfed.core.paths import expand_path

# upper limit of all counts: more would neither fit in memory nor end. Help does not show it
MOST = 10**9
SIGNS = {
    "Gt": ">",
    "Ge": ">=",
    "Lt": "<",
    "Le": "<=",
}  # by name of annotated_types' classes, which pydantic uses

PositiveInt = Annotated[int, Gt(0), Le(MOST)]
Count = Annotated[int, Ge(0), Le(MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda v: v.split(",") if isinstance(v, str) else v)
]
FileName = Annotated[Path, BeforeValidator(expand_path)]


class Limited(BaseModel):
    """Base of a job and its sections: numbers are not switches."""

    @field_validator("*", mode="before")
    @classmethod
    def numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """Raise ValueError for true and false where a number is required.

        Otherwise they would count as 1 and 0.
        """
        if takes_numbers(cls, str(info.field_name)):
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, bool):
                    raise ValueError(f"takes a number, got {str(one).lower()}")
        return value


@cache
def takes_numbers(table: type[BaseModel], name: str) -> bool:
    """Return whether a field of a table takes numbers and is no switch."""
    kinds = set(kinds_of(table.model_fields[name].annotation))
    return bool(kinds & {int, float}) and bool not in kinds


def kinds_of(annotation: Any) -> Iterator[Any]:
    """Yield all types that an annotation consists of."""
    yield annotation
    for part in get_args(annotation):
        yield from kinds_of(part)


def limits(field: FieldInfo) -> str:
    """Return the range of a field, or of each of its values, in words: `> 0`, `>= 0, <= 1`."""
    inner = [
        bound for part in get_args(field.annotation) for bound in getattr(part, "__metadata__", ())
    ]
    named = [(type(bound).__name__, bound) for bound in (*field.metadata, *inner)]
    bounds = [(SIGNS[n], getattr(bound, n.lower())) for n, bound in named if n in SIGNS]
    return ", ".join(dict.fromkeys(f"{sign} {value:g}" for sign, value in bounds if value != MOST))
