"""The same cases in every run, no variables of the user's own, and a limit to memory."""

import os
import resource
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

ROOM = 4 * 2**30  # bytes that a case may take beyond what the tests have

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile(
    "suite", derandomize=True, database=None, deadline=None, suppress_health_check=SLOW
)
settings.register_profile(
    "search", settings.get_profile("suite"), derandomize=False, max_examples=20_000
)
settings.load_profile(os.environ.get("ATTACK", "suite"))  # ATTACK=search looks for new cases


@pytest.fixture(autouse=True)
def own_environment(monkeypatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("HPCFED_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="module")
def little_memory() -> Iterator[None]:
    """What takes memory beyond reason fails here, instead of taking that of the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
