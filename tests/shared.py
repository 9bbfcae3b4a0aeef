"""The real data sets that lie beside the checkout, or the reason to skip a test that needs one."""

from pathlib import Path

import pytest

from tests.mpirun import ROOT

SHARED = ROOT.parent / "shared" / "data"


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"needs ../shared/data/{name}")
    return SHARED / name
