"""hpcfed: federated learning with different models on different clients, on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcfed.results.run import Run

__version__ = "0.1.0"


def load(run: str | Path) -> Run:
    """The results of a run, by its folder or its results.h5: a small read-only object, also while the run goes on."""
    from hpcfed.results.run import Run  # here: `hpcfed list` reads no results

    return Run(run)
