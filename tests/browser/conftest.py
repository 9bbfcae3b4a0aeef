"""One browser for all tests of a session."""

import os
from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, install, missing


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, installed where it is missing. A machine that cannot have it says so: in CI that is a failure."""
    if missing() and (why := install() or ", ".join(missing())):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no Chromium here, and none to be had: {why}")
    found = Browser(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()
