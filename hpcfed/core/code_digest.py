"""Digests of users' code, by which a changed method or model is noticed.

A digest covers the source of a class or function, and of all that it names in users' files: base
classes, functions, constants, and modules. Comments, docstrings and formatting do not count.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import sys
from contextlib import suppress
from functools import partial
from textwrap import dedent
from types import CodeType, ModuleType
from typing import Any

from hpcfed.core import user_code

DIGITS = 16
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def digest(thing: Any) -> str:
    """Return the digest of a user's class, function or `functools.partial`."""
    parts: dict[str, str] = {}
    add(thing, parts)
    total = hashlib.sha256()
    for name in sorted(parts):
        total.update(f"{name}\n{parts[name]}\n".encode())
    return total.hexdigest()[:DIGITS]


def add(thing: Any, parts: dict[str, str]) -> None:
    """Add the source of a thing, and of what it names, to `parts`, by name."""
    if isinstance(thing, ModuleType):
        return add_module(thing, parts)
    if isinstance(thing, partial):
        parts[f"partial {len(parts)}"] = f"{thing.args!r} {sorted(thing.keywords.items())!r}"
        return add(thing.func, parts)
    thing = inspect.unwrap(thing) if callable(thing) else thing
    module = getattr(thing, "__module__", None) or ""
    name = f"{module}:{getattr(thing, '__qualname__', type(thing).__name__)}"
    if name in parts or not of_user(thing):
        return
    text = source(thing)
    parts[name] = text
    around = vars(sys.modules.get(module, ModuleType(""))) | getattr(thing, "__globals__", {})
    for other in names_in(text):
        if other in around:
            add_value(other, around[other], parts)


def add_value(name: str, value: Any, parts: dict[str, str]) -> None:
    """Add a global that users' code names: a constant, or code of users' own."""
    if isinstance(value, PLAIN) or (
        isinstance(value, tuple | list) and all(isinstance(item, PLAIN) for item in value)
    ):
        parts[f"constant {name}"] = repr(value)
    elif isinstance(value, ModuleType) or callable(value):
        add(value, parts)


def add_module(module: ModuleType, parts: dict[str, str]) -> None:
    """Add all of a user's module: which of its functions are called is not looked for."""
    name, file = f"module {module.__name__}", getattr(module, "__file__", None)
    if name in parts or not file or not user_code.is_own(file):
        return
    with suppress(OSError, TypeError):
        parts[name] = without_comments(inspect.getsource(module))
        for value in list(vars(module).values()):
            if isinstance(value, ModuleType):
                add(value, parts)


def of_user(thing: Any) -> bool:
    """Return whether a class or function is defined in a file of the user's, or in a notebook."""
    if getattr(thing, "__module__", None) == "__main__":
        return True
    try:
        return user_code.is_own(user_code.file_of(thing))
    except (OSError, TypeError):
        return False


def source(thing: Any) -> str:
    """Return the source of a class or function without comments; else what is compiled of it."""
    with suppress(OSError, TypeError):
        return without_comments(inspect.getsource(thing))
    if not isinstance(thing, type):
        code = getattr(thing, "__code__", None)
        return compiled(code) if code else repr(type(thing))
    with suppress(OSError, TypeError, SyntaxError):
        return without_comments(source_in_cell(thing))
    fields = getattr(thing, "model_fields", {})  # pydantic removes them from the class
    members = {name: value for name, value in vars(thing).items() if not name.startswith("__")}
    members |= {name: field.default for name, field in fields.items()}
    plain = [f"{name} = {value!r}" for name, value in sorted(members.items()) if is_plain(value)]
    functions = sorted(user_code.functions_of(thing), key=lambda function: function.__qualname__)
    bases = ", ".join(base.__name__ for base in thing.__bases__)
    return "\n".join([f"{thing.__name__}({bases})", *plain, *map(source, functions)])


def source_in_cell(cls: type) -> str:
    """Return the source of a class of a notebook, by the lines of one of its functions.

    `inspect` does not find it, because a notebook's module has no file.
    Raises OSError if no function has a source.
    """
    for function in user_code.functions_of(cls):
        code = function.__code__
        cell = ast.parse("".join(linecache.getlines(code.co_filename)))
        classes = (node for node in ast.walk(cell) if isinstance(node, ast.ClassDef))
        for node in (node for node in classes if node.name == cls.__name__):
            if node.lineno <= code.co_firstlineno <= (node.end_lineno or 0):
                return ast.unparse(node)
    raise OSError(f"{cls.__qualname__}: no source")


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text or none, or a container of these."""
    if isinstance(value, dict):
        return all(map(is_plain, [*value, *value.values()]))
    return isinstance(value, PLAIN) or (
        isinstance(value, tuple | list) and all(map(is_plain, value))
    )


def compiled(code: CodeType) -> str:
    """Return bytecode and constants of a function whose source is not known."""
    constants = [
        compiled(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts
    ]
    return " ".join([code.co_code.hex(), *constants, *code.co_names])


def without_comments(text: str) -> str:
    """Return source in Python's own formatting, without comments and docstrings."""
    try:
        tree = ast.parse(dedent(text))
    except SyntaxError:  # a lambda in the middle of a line
        return text
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1 and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                del body[0]
    return ast.unparse(tree)


def names_in(text: str) -> list[str]:
    """Return the names that code reads, without their attributes."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    return sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
