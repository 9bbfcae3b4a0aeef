"""Import of users' Python files, and messages about their errors with file and line.

A job names a class or function of such a file as "module:attribute". An error in its definition
becomes one message, a `ConfigError`. An exception that it raises later is reported with the part of
the traceback that lies in the user's files.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import FunctionType
from typing import TYPE_CHECKING, Any

from hpcfed.core.errors import ConfigError, HpcfedError, first_line

if TYPE_CHECKING:
    from pydantic import PydanticUserError

PACKAGE = Path(__file__).parents[1]
SITE = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
LIBRARY = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
# parts of pydantic's messages: a field with an unimported or an unsuitable type
UNDEFINED = re.compile(r"define `(\w+)`")
UNKNOWN = re.compile(r"schema for <class '([\w.]+)'>")
HOLDS = "a field is a number, a text, true or false, or a tuple of these"


class OwnError(ConfigError):
    """A mistake in a user's own class or function that appears when it is called."""


roots: set[Path] = set()  # folders and files from which users' code was imported
LENT: dict[str, Any] = {}  # classes and functions that `hpcfed.run` was given, by name


def load(field: str, name: str, form: str) -> Any:
    """Return the object that a user's "module:attribute" names.

    field: the job's field that names it.
    form: how the name is written, for messages.
    Raises ConfigError if there is no such file or attribute, or if the file raises during import;
    the message has the line.
    """
    where = f"{field} = {name!r}"
    module, _, attribute = name.partition(":")
    if name in LENT:
        return LENT[name]
    if not is_name(name) or is_file_name(module):
        dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        write = f"{dotted}:{attribute}"
        raise ConfigError(
            f"{where}: is not a name of the form {form}; "
            f"{f'write {write}' if is_name(write) else 'mine:Mine is Mine of mine.py'}"
        )
    register(where, module, form)
    try:
        # `algorithms.hook_check` refuses such fields with a message of its own
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Field name .* shadows an attribute")
            loaded = import_module(module)
    except HpcfedError:
        raise
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(explain_missing(where, module)) from error
        raise ConfigError(f"{where}: {refusal(error)}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where}: {refusal(error)}") from error
    if not hasattr(loaded, attribute):
        names = [other for other in vars(loaded) if not other.startswith("_")]
        near = get_close_matches(attribute, names, n=1)
        hint = f"; did you mean {module}:{near[0]}?" if near else ""
        file = display_path(getattr(loaded, "__file__", None) or module)
        raise ConfigError(f"{where}: {file} has no {attribute!r}{hint}")
    return getattr(loaded, attribute)


def is_name(text: str) -> bool:
    """Return whether a text has the form of "module:attribute"."""
    module, _, attribute = text.partition(":")
    return all(part.isidentifier() for part in (*module.split("."), attribute))


def is_file_name(module: str) -> bool:
    """Return whether this is mine.py, and not the module py of a package mine."""
    above, _, last = module.rpartition(".")
    if not above or last != "py":
        return False
    spec = specification(above.partition(".")[0])
    return spec is None or not spec.submodule_search_locations


@contextmanager
def lend(things: Mapping[str, Any]) -> Iterator[None]:
    """Make names of a job stand for these classes and functions inside the block.

    This serves classes and functions that a script or notebook defines.
    """
    before = {name: LENT[name] for name in things if name in LENT}
    LENT.update(things)
    for thing in things.values():
        with suppress(OSError, TypeError):  # without a source, messages name no line
            roots.add(Path(os.path.abspath(file_of(thing))))
    try:
        yield
    finally:
        for name in things:
            LENT.pop(name, None)
        LENT.update(before)


def file_of(thing: Any) -> str:
    """Return the file that defines a function or class; a cell of a notebook also has a name.

    Raises OSError or TypeError if there is none.
    """
    thing = inspect.unwrap(thing)
    if not isinstance(thing, type):
        return inspect.getfile(getattr(thing, "func", thing))  # the function of a functools.partial
    files = (function.__code__.co_filename for function in functions_of(thing))
    return next(files, None) or inspect.getfile(thing)


def functions_of(cls: type) -> list[FunctionType]:
    """Return the functions in the body of a class: methods, and those of its properties."""
    members: list[Any] = []
    for member in vars(cls).values():
        if isinstance(member, property):
            members += [member.fget, member.fset, member.fdel]
        else:
            members.append(member.func if isinstance(member, cached_property) else member)
    functions = filter(inspect.isfunction, map(inspect.unwrap, members))
    # pydantic adds functions of its own to a class
    return [function for function in functions if function.__module__ == cls.__module__]


def register(where: str, module: str, form: str) -> None:
    """Register the files of this module, and those beside it, as the user's.

    Raises ConfigError for a module of Python's standard library, and for a missing one.
    """
    top = module.partition(".")[0]
    spec = specification(top)
    if spec is None and top not in sys.modules:
        raise ConfigError(explain_missing(where, module))
    built_in = spec is not None and spec.origin in ("built-in", "frozen")
    file = None if built_in else origin(spec, top)
    if built_in or (file is not None and under(file, LIBRARY) and not under(file, SITE)):
        raise ConfigError(
            f"{where}: {top} is a module of Python's standard library; write {form} for a file of "
            f"your own, and rename your file if it has this name"
        )
    # imported here because `hpcfed list` needs no torch
    from hpcfed.core.compat import prepare_torchvision

    prepare_torchvision()
    if file is not None:
        installed = file.parent in SITE and not (spec and spec.submodule_search_locations)
        roots.add(file if installed else file.parent)


def specification(top: str) -> ModuleSpec | None:
    """Return the import specification of a module, or None.

    None stands for a module that Python does not find, and for a script, which has no name.
    """
    try:
        return find_spec(top)
    except ValueError:
        return None


def origin(spec: ModuleSpec | None, top: str) -> Path | None:
    """Return the file of a module; for a package, its __init__.py."""
    file = spec.origin if spec else getattr(sys.modules.get(top), "__file__", None)
    if file is None and spec and spec.submodule_search_locations:
        file = os.path.join(next(iter(spec.submodule_search_locations)), "__init__.py")
    return Path(os.path.abspath(file)) if file else None


def explain_missing(where: str, module: str) -> str:
    """Return the message for a missing module, with similar files of the current folder."""
    file = module.replace(".", "/") + ".py"
    if Path(file).is_file():  # the console command does not import from the current folder
        return (
            f"{where}: {file} is in {Path.cwd()}, which is not on Python's path; start with "
            f"`PYTHONPATH=.` before the command"
        )
    here = [path.name for path in Path.cwd().glob("*.py")]
    near = get_close_matches(file, here, n=2)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return (
        f"{where}: there is no {file} in {Path.cwd()} or on Python's path{hint}\n"
        f"  start in the folder of your file, or add that folder to PYTHONPATH"
    )


def under(path: Path, folders: set[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def is_own(file: str) -> bool:
    """Return whether a file is the user's.

    It lies where users' modules were imported from, and belongs to no installed package.
    """
    path = Path(os.path.abspath(file))
    holders = {root for root in roots if path.is_relative_to(root)}
    others = {PACKAGE, *SITE, *LIBRARY}
    inside = {folder for folder in others if path.is_relative_to(folder)}
    return any(not any(f.is_relative_to(root) for f in inside) for root in holders)


def display_path(file: str | Path) -> str:
    """Return a file as messages name it: relative to the current folder if it lies there."""
    path, here = Path(os.path.abspath(file)), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def line_of(thing: Any) -> str:
    """Return where a function or class is defined: `mine.py, line 12`; its name if unknown."""
    thing = inspect.unwrap(thing)
    try:
        file = inspect.getsourcefile(thing) or inspect.getfile(thing)
        return f"{display_path(file)}, line {inspect.getsourcelines(thing)[1] or 1}"
    except (OSError, TypeError):
        return getattr(thing, "__qualname__", type(thing).__name__)


def frames(error: BaseException) -> list[FrameSummary]:
    """Return the frames of an exception that are in the user's files, the innermost last."""
    return [frame for frame in extract_tb(error.__traceback__) if is_own(frame.filename)]


def is_raised_there(error: BaseException) -> bool:
    """Return whether the user's code raised an exception, or a library that it called."""
    for frame in reversed(extract_tb(error.__traceback__)):
        if is_own(frame.filename):
            return True
        if Path(frame.filename).is_relative_to(PACKAGE):
            return False
    return False


def caller() -> str:
    """Return the user's current line as the beginning of a message; "" if there is none."""
    frame = inspect.currentframe()
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{display_path(frame.f_code.co_filename)}, line {frame.f_lineno}: " if frame else ""


def place_of(frame: FrameSummary) -> str:
    """Return file and line of a frame, as messages name them."""
    return f"{display_path(frame.filename)}, line {frame.lineno}"


def refusal(error: BaseException, file: str = "its file") -> str:
    """Return one sentence, with place and cause, for an exception of a user's file.

    The exception was raised when the file was imported, or when an object of its class was made.
    file: names the place if the exception has none.
    """
    # imported here because a saved model is loaded without it
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError

    if isinstance(error, SyntaxError):
        place = f"{display_path(error.filename)}, line {error.lineno}" if error.filename else file
        return f"{place}: {error.msg}"
    user_frames = frames(error)
    place = place_of(user_frames[-1]) if user_frames else file
    if isinstance(error, PydanticUserError):
        return field_refusal(error, place)
    if isinstance(error, PydanticUndefinedAnnotation):
        return f"{place}: a field has the type {error.name}, which is not imported"
    if isinstance(error, SystemExit):
        return f"{place}: ends Python when it is imported ({error!r}); leave that to a script"
    if isinstance(error, ModuleNotFoundError):
        return f"{place}: {error}; install it, or fix the import"
    return f"{place}: {type(error).__name__}: {first_line(error)}"


def field_refusal(error: PydanticUserError, place: str) -> str:
    """Return one sentence for an error in the fields of a user's class."""
    if error.code == "class-not-fully-defined" and (name := UNDEFINED.search(error.message)):
        return f"{place}: a field has the type {name[1]}, which is not imported"
    if error.code in (None, "schema-for-unknown-type") and (name := UNKNOWN.search(error.message)):
        return (
            f"{place}: a field has the type {name[1]}, which a job cannot hold; {HOLDS}; tensors "
            f"belong into the state"
        )
    return f"{place}: {error.message.splitlines()[0]}"


def no_value(name: str, value: Any) -> str:
    """Return the end of a message, after "which", for a value that no field of a job can have."""
    advice = "tensors belong into the state"
    if callable(value):
        word = getattr(value, "__name__", "")
        word = word if word.isidentifier() else "name"  # of a lambda
        advice = f"write `{name}: str = {word!r}` and look the function up by its name"
    return f"a job cannot hold; {HOLDS}; {advice}"


@contextmanager
def making(what: str, cls: type) -> Iterator[None]:
    """Convert errors from making an object of a user's class to one ConfigError.

    what: the beginning of the message.
    """
    # imported here because a saved model is loaded without it
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError

    try:
        yield
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigError(f"{what}: {refusal(error, line_of(cls))}") from error
    except HpcfedError:
        raise
    except Exception as error:
        if not frames(error):
            raise
        raise ConfigError(f"{what}: {refusal(error)}") from error


def explain_error(error: BaseException) -> str:
    """Return place, message and traceback of an exception of the user's own code.

    Only frames in the user's files are shown; "" if there are none.
    """
    user_frames = frames(error)
    if not user_frames:
        return ""
    from pydantic import ValidationError  # imported here because a saved model is loaded without it

    last = user_frames[-1]
    place = f"{place_of(last)}, in {last.name}"
    if isinstance(error, ValidationError) and error.errors()[0]["type"] == "frozen_instance":
        return f"{place}: {explain_assignment(error.errors()[0]['loc'][0])}"
    message = str(error).strip() or "no message"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        message += "; no hook ends the process: raise an exception, such as ValueError(message)"
    lines = [f"{place}: {type(error).__name__}: {message}", "  in your files:"]
    for frame in user_frames:
        lines += [f"    {place_of(frame)}, in {frame.name}"]
        lines += [f"      {frame.line}"] if frame.line else []
    inner = extract_tb(error.__traceback__)[-1]
    if inner is not last and not is_own(inner.filename):
        lines += [f"  raised in {inner.filename}, line {inner.lineno}, in {inner.name}"]
    lines += getattr(error, "__notes__", ())  # see `BaseException.add_note`
    return "\n".join(lines)


def explain_assignment(name: object) -> str:
    """Return the message for an assignment to self.name in a method of an algorithm."""
    return (
        f"self.{name} is assigned, but an algorithm is frozen: the same object serves all clients, "
        f"rounds and ranks; keep what a client remembers in client.memory[{str(name)!r}], what the "
        f"server remembers in the state that `server` or `round` returns, and a parameter as a "
        f"field of the class, `{name}: float = 0.1`"
    )


def parameters_of(fn: Callable[..., Any]) -> tuple[list[str], list[str], bool]:
    """Return a function's required parameters, its named ones, and whether it takes any number."""
    named, must, any_number = [], [], False
    for p in inspect.signature(fn).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            any_number = any_number or p.kind == p.VAR_POSITIONAL
            continue
        named.append(p.name)
        must += [p.name] if p.default is p.empty else []
    return must, named, any_number
