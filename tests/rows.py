"""Many small rows in one test: each row as a test of its own takes longer than what it tests."""

from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import TypeVar

import pytest

T = TypeVar("T")


def for_each(rows: Iterable[T]) -> Callable[[Callable[[T], None]], Callable[[], None]]:
    """Make one test of a check with one parameter: it tries all rows and names those that fail."""

    def decorate(check: Callable[[T], None]) -> Callable[[], None]:
        def test() -> None:
            if reasons := failures(check, rows):
                lines = [f"{row}: {reason}" for row, reason in reasons.items()]
                pytest.fail("\n".join(lines), pytrace=False)

        update_wrapper(test, check)
        del test.__wrapped__  # whose parameter pytest would take for a fixture
        return test

    return decorate


def failures(check: Callable[[T], None], rows: Iterable[T]) -> dict[str, str]:
    """Return the reasons why a check fails, by row."""
    reasons = {}
    for row in rows:
        try:
            check(row)
        except Exception as error:
            reasons[str(row)] = f"{type(error).__name__}: {error}"
    return reasons
