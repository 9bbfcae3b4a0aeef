"""One browser for all tests of a session."""

from collections.abc import Iterator

import pytest

from tests import debian
from tests.browser.chromium import PACKAGES, PROGRAMS, Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, installed where it is missing."""
    debian.needed("Chromium", PROGRAMS, PACKAGES, seconds=120)
    page = Browser(tmp_path_factory.mktemp("browser"))
    yield page
    page.close()
