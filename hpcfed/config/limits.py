"""The kinds of fields with their ranges, and the range of each field for its help."""

from pathlib import Path
from typing import Annotated, get_args

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, BeforeValidator, Field
from pydantic.fields import FieldInfo

from hpcfed.paths import named

# of anything that is counted; more would neither fit in memory nor end. Help does not show it
MOST = 10**9
SIGNS = {
    "Gt": ">",
    "Ge": ">=",
    "Lt": "<",
    "Le": "<=",
}  # of annotated_types' classes, which pydantic uses

PositiveInt = Annotated[int, Gt(0), Le(MOST)]
Count = Annotated[int, Ge(0), Le(MOST)]
Share = Annotated[float, Field(ge=0, le=1)]
Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda v: v.split(",") if isinstance(v, str) else v)
]
FileName = Annotated[Path, BeforeValidator(named)]


def describe_limits(model: type[BaseModel]) -> None:
    """Add the range of each field to its help."""
    for field in model.model_fields.values():
        bounds = limits(field)
        if field.description and bounds and not field.description.endswith("]"):
            field.description += f" [{bounds}]"


def limits(field: FieldInfo) -> str:
    """The range of a field, or of each of its values, in words: `> 0`, `>= 0, <= 1`."""
    inner = [
        bound for part in get_args(field.annotation) for bound in getattr(part, "__metadata__", ())
    ]
    named = [(type(bound).__name__, bound) for bound in (*field.metadata, *inner)]
    known = [(SIGNS[n], getattr(bound, n.lower())) for n, bound in named if n in SIGNS]
    return ", ".join(dict.fromkeys(f"{sign} {value:g}" for sign, value in known if value != MOST))
