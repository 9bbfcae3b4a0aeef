"""Keeps these tests running where the plugin pytest-mpi is installed."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Take back pytest-mpi's skip: it takes this folder's name for its mark, and the run would be
    green.
    """
    for item in items:
        if item.nodeid.startswith("tests/mpi/"):
            item.own_markers = [
                mark
                for mark in item.own_markers
                if "--with-mpi" not in str(mark.kwargs.get("reason", ""))
            ]
