"""Turns an error of some ranks into the same error on all ranks, so that all stop together."""

from collections.abc import Callable
from typing import Any, TypeVar

from hpcfed.comm.protocol import Comm
from hpcfed.core import errors
from hpcfed.core.errors import HpcfedError

T = TypeVar("T")


def on_all_ranks(comm: Comm, fn: Callable[[], T]) -> T:
    """Return fn() on every rank, or raise the same error on all of them; collective.

    If fn raises HpcfedError on any rank, all ranks raise the error of the lowest such rank: its
    class, or the nearest base of it in core/errors.py, and its message. fn must not communicate: a
    rank that fails would leave the others waiting.
    """
    value, error = None, None
    try:
        value = fn()
    except HpcfedError as raised:
        error = raised
    report = [class_name(error), str(error), error.again] if error else []
    reports: dict[int, Any] = comm.gather({comm.rank: report})
    failures = {rank: report for rank, report in reports.items() if report}
    if failures:
        raise common_error(failures, comm.size)
    return value  # type: ignore[return-value]


def class_name(error: HpcfedError) -> str:
    """Return the name of the error's class, or of its nearest base, in core/errors.py."""
    return next(base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)


def common_error(failures: dict[int, Any], ranks: int) -> HpcfedError:
    """Return the error that all ranks raise, made from that of the first failed rank.

    It names the rank unless that is rank 0 or all ranks have the same message.
    failures: by rank, the name of the error's class, its message, and whether it may pass.
    """
    lowest = min(failures)
    name, message, again = failures[lowest]
    alike = lowest == 0 or [report[1] for report in failures.values()] == ranks * [message]
    error: HpcfedError = getattr(errors, name)(message if alike else f"rank {lowest}: {message}")
    error.again = again
    return errors.everywhere(error)
