"""One virtual cluster for all tests of a session, and desks from which jobs are submitted to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcfed.storage.digest import digest
from tests import debian
from tests.mpirun import mpirun
from tests.slurm import gated
from tests.slurm.cluster import PACKAGES, PATH, PROGRAMS, Cluster
from tests.slurm.desk import JOB, LIMIT, Desk


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Slurm, installed where it is missing."""
    debian.needed("Slurm", PROGRAMS, PACKAGES, seconds=60, path=PATH)
    with Cluster(tmp_path_factory.mktemp("slurm") / "c") as running:
        yield running


@pytest.fixture
def desk(cluster: Cluster, tmp_path: Path) -> Desk:
    return Desk(cluster, tmp_path / "desk")


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JOB on one rank, without Slurm and without a break."""
    folder = tmp_path_factory.mktemp("wanted")
    (folder / gated.OPEN).touch()
    mpirun(1, "-m", "hpcfed.main", *JOB, "--out", "run", timeout=LIMIT, cwd=folder)
    return folder / "run"


@pytest.fixture(scope="session")
def wanted(unbroken: Path) -> str:
    """The digest of JOB."""
    return digest(unbroken)
