"""The text under each field of a section, which is its help.

pydantic would read the source of every section whenever hpcfed is imported
(`use_attribute_docstrings`); here it is read when a text is wanted.
"""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel


def field_doc(section: type[BaseModel], name: str) -> str:
    """Return the text of a field as its class has it; "" if it has none."""
    if text := section.model_fields[name].description:
        return text
    texts = (attribute_docs(cls).get(name) for cls in section.__mro__)
    return next(filter(None, texts), "")


@cache
def attribute_docs(cls: type) -> dict[str, str]:
    """Return the strings that follow attributes in the body of a class, by name.

    Empty if its source is in no file.
    """
    try:
        source = dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    [body] = [node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
