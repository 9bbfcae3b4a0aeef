"""hpcfed: federated learning with different models on different clients, on a cluster."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from hpcfed.core.version import __version__ as __version__

if TYPE_CHECKING:
    from hpcfed.models.trained import Trained
    from hpcfed.results.run import Run


def load(run: str | Path) -> Run:
    """The results of a run, by its folder or its results.h5: a small read-only object, also while
    the run goes on.
    """
    from hpcfed.results.run import Run  # here: `hpcfed list` reads no results

    return Run(run)


def load_model(source: str | Path, client: int | None = None, own: Collection[str] = ()) -> Trained:
    """Client k's trained model: a torch.nn.Module in eval mode, on the CPU, that takes inputs as
    the data set has them.

    source: folder of a run, also while it goes on: its newest checkpoint that is whole; or a file
    of `hpcfed models`, for which nothing of the run is needed, and no client.
    own: methods and models of your own that the run uses, as ["mine:tiny"]; their modules are
    imported, which runs their code, so only those that are named here are.
    model(x): scores [n, C].  model.represent(x): representations [n, d].  model.about:
    architecture, classes, job. Raises CheckpointError where there is no such model, ConfigError for
    a client that the run does not have.
    """
    from hpcfed.results.trained.load import load_model  # here: `hpcfed list` needs no torch

    return load_model(source, client, own)
