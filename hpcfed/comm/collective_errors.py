"""Turns an error of some ranks into the same error on all ranks, so that all stop together."""

from collections.abc import Callable
from typing import Any, TypeVar

from hpcfed.comm.protocol import Comm
from hpcfed.core.errors import HpcfedError

T = TypeVar("T")


def on_all_ranks(comm: Comm, fn: Callable[[], T]) -> T:
    """Return fn() on every rank, or raise the same error on all of them; collective.

    If fn raises HpcfedError on any rank, all ranks raise the error of the lowest such rank. fn must
    not communicate: a rank that fails would leave the others waiting.
    """
    value, error = None, None
    try:
        value = fn()
    except HpcfedError as raised:
        error = raised
    reports: dict[int, Any] = comm.gather(
        {comm.rank: [str(error) if error else "", bool(error and error.again)]}
    )
    messages = {rank: message for rank, (message, _) in reports.items()}
    failed = [rank for rank, message in messages.items() if message]
    if failed:
        same = common_error(messages, failed[0], error)
        same.again = reports[failed[0]][1]
        raise same
    return value  # type: ignore[return-value]


def common_error(messages: dict[int, str], rank: int, error: HpcfedError | None) -> HpcfedError:
    """Return the error that all ranks raise, made from that of the first failed rank.

    It names the rank unless that is rank 0 or all ranks have the same message.
    """
    message = messages[rank]
    alike = rank == 0 or all(m == message for m in messages.values())
    same = type(error or HpcfedError())(message if alike else f"rank {rank}: {message}")
    same.everywhere = True
    return same
