"""A test of many rows names those that fail."""

import pytest

from tests.rows import failures, for_each


def check_row(row: int) -> None:
    if row == 2:
        raise ValueError("two")


def test_rows_that_fail_are_named_with_their_reason():
    assert failures(check_row, [1, 2, 3]) == {"2": "ValueError: two"}
    with pytest.raises(pytest.fail.Exception, match="^2: ValueError: two$"):
        for_each([1, 2, 3])(check_row)()
    for_each([1, 3])(check_row)()
