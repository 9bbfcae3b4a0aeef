"""The range of each field, for its help."""

from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

SIGNS = {"Gt": ">", "Ge": ">=", "Lt": "<", "Le": "<="}  # of annotated_types' classes, which pydantic uses


def describe_limits(model: type[BaseModel]) -> None:
    """Add the range of each field to its help."""
    for field in model.model_fields.values():
        bounds = limits(field)
        if field.description and bounds and not field.description.endswith("]"):
            field.description += f" [{bounds}]"


def limits(field: FieldInfo) -> str:
    """The range of a field, or of each of its values, in words: `> 0`, `>= 0, <= 1`."""
    inner = [bound for part in get_args(field.annotation) for bound in getattr(part, "__metadata__", ())]
    named = [(type(bound).__name__, bound) for bound in (*field.metadata, *inner)]
    return ", ".join(dict.fromkeys(f"{SIGNS[n]} {getattr(bound, n.lower()):g}" for n, bound in named if n in SIGNS))
