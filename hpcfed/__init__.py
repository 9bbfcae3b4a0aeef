"""hpcfed: federated learning with different models on different clients, on a cluster.

For whoever reads results: `load`, `load_model`. For a method of your own, in one line:
`from hpcfed import Mean, Params, RoundBased, losses, rng, sgd`. What is not used is not imported.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.core.version import __version__ as __version__

if TYPE_CHECKING:
    from hpcfed.algorithms.base import RoundBased, Share, State
    from hpcfed.algorithms.events import EventBased
    from hpcfed.clients.client import Client, Paired
    from hpcfed.core import rng
    from hpcfed.core.params import Mean, Params
    from hpcfed.federation.federation import Federation
    from hpcfed.models.trained import Trained
    from hpcfed.results.run import Run
    from hpcfed.training import infer, losses
    from hpcfed.training.local import LocalSteps, sgd

__all__ = [
    "Client",
    "EventBased",
    "Federation",
    "LocalSteps",
    "Mean",
    "Paired",
    "Params",
    "RoundBased",
    "Run",
    "Share",
    "State",
    "Trained",
    "__version__",
    "infer",
    "load",
    "load_model",
    "losses",
    "rng",
    "sgd",
]
PLACES = {  # of the names above that are imported when they are asked for
    "Client": "hpcfed.clients.client",
    "EventBased": "hpcfed.algorithms.events",
    "Federation": "hpcfed.federation.federation",
    "LocalSteps": "hpcfed.training.local",
    "Mean": "hpcfed.core.params",
    "Paired": "hpcfed.clients.client",
    "Params": "hpcfed.core.params",
    "RoundBased": "hpcfed.algorithms.base",
    "Run": "hpcfed.results.run",
    "Share": "hpcfed.algorithms.base",
    "State": "hpcfed.algorithms.base",
    "Trained": "hpcfed.models.trained",
    "infer": "hpcfed.training",
    "losses": "hpcfed.training",
    "rng": "hpcfed.core",
    "sgd": "hpcfed.training.local",
}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'hpcfed' has no attribute {name!r}")
    module = import_module(PLACES[name])
    return getattr(module, name, None) or import_module(f"{PLACES[name]}.{name}")


def __dir__() -> list[str]:
    return __all__


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
