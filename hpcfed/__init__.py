"""hpcfed: federated learning with different models on different clients, on a cluster.

For a script or notebook: `run`, `sweep`, and the errors that they raise. For readers of results:
`load`, `load_model`, `table`, `compare`, `plot`, `report`. For a method of your own, in one line:
`from hpcfed import Mean, Params, RoundBased, Upload, losses, rng`. What is not used is not
imported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcfed.core.version import __version__ as __version__

if TYPE_CHECKING:
    from hpcfed.algorithms.base import Guide, RoundBased, State
    from hpcfed.algorithms.events import EventBased
    from hpcfed.clients.client import Client, Paired, Shard
    from hpcfed.config.conditions import (
        SET,
        SEVERAL,
        UNSET,
        Unused,
        above,
        at_most,
        below,
        field,
        other_than,
        unless,
    )
    from hpcfed.config.job import Job
    from hpcfed.config.limits import Share
    from hpcfed.core import rng
    from hpcfed.core.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        DivergedError,
        HpcfedError,
        StoppedError,
    )
    from hpcfed.core.params import Mean, Params
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.upload import Upload
    from hpcfed.launch.sweep.python import sweep
    from hpcfed.models.model import Model
    from hpcfed.models.predictions import Ensemble
    from hpcfed.models.trained import Trained
    from hpcfed.report.python import compare, plot, report, table
    from hpcfed.results.run import Run
    from hpcfed.training import infer, losses
    from hpcfed.training.local import LocalSteps, sgd

__all__ = [
    "SET",
    "SEVERAL",
    "UNSET",
    "CheckpointError",
    "Client",
    "ConfigError",
    "DataError",
    "DivergedError",
    "Ensemble",
    "EventBased",
    "Federation",
    "Guide",
    "HpcfedError",
    "Job",
    "LocalSteps",
    "Mean",
    "Model",
    "Paired",
    "Params",
    "RoundBased",
    "Run",
    "Shard",
    "Share",
    "State",
    "StoppedError",
    "Trained",
    "Unused",
    "Upload",
    "__version__",
    "above",
    "at_most",
    "below",
    "compare",
    "field",
    "infer",
    "load",
    "load_model",
    "losses",
    "other_than",
    "plot",
    "report",
    "rng",
    "run",
    "sgd",
    "sweep",
    "table",
    "unless",
]
# modules of the names above that are imported when they are asked for
MODULES = {
    "hpcfed.algorithms.base": "Guide RoundBased State",
    "hpcfed.algorithms.events": "EventBased",
    "hpcfed.clients.client": "Client Paired Shard",
    "hpcfed.config.conditions": (
        "SET SEVERAL UNSET Unused above at_most below field other_than unless"
    ),
    "hpcfed.config.job": "Job",
    "hpcfed.config.limits": "Share",
    "hpcfed.core": "rng",
    "hpcfed.core.errors": (
        "CheckpointError ConfigError DataError DivergedError HpcfedError StoppedError"
    ),
    "hpcfed.core.params": "Mean Params",
    "hpcfed.federation.federation": "Federation",
    "hpcfed.federation.upload": "Upload",
    "hpcfed.launch.sweep.python": "sweep",
    "hpcfed.models.model": "Model",
    "hpcfed.models.predictions": "Ensemble",
    "hpcfed.models.trained": "Trained",
    "hpcfed.report.python": "compare plot report table",
    "hpcfed.results.run": "Run",
    "hpcfed.training": "infer losses",
    "hpcfed.training.local": "LocalSteps sgd",
}
PLACES = {name: module for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'hpcfed' has no attribute {name!r}")
    module = import_module(PLACES[name])
    return getattr(module, name, None) or import_module(f"{PLACES[name]}.{name}")


def __dir__() -> list[str]:
    return __all__


def run(
    job: str | Path | Sequence[str | Path] | Mapping[str, Any] | None = None,
    *,
    ranks: int = 1,
    resume: bool | str | Path = False,
    launcher: str = "",
    **fields: Any,
) -> Run:
    """Run a job from a script or notebook; its results, as `load` gives them.

    job: path of a job file, several of which the later win, or a dict of a job's tables; None: the
    embedded job. ranks: 1 computes in this process; more are started by mpirun, or by `launcher`,
    on this machine. The bits of the results are the same, and those of the command. resume: True
    continues the run of this job, or starts it if there is none; a path continues that run. fields:
    of the job, over all others, as flags of the command: `rounds=20`, `algorithm={"name":
    "fedprox", "mu": 0.1}`, `data={"alpha": 0.1}`. Where a job has a name, the thing itself may
    stand: `algorithm=Mine(mu=0.1)`, an object or a class; `model=build`, a function or class, or a
    list of them, for `models.mix`; `data=(x, y)`, `(x, y, x_test, y_test)`, a list of such tuples,
    one per client, a DataFrame, a torch Dataset, or a dict or object with the names of an .npz
    file, `users_train` (the natural client of each example) among them. For x a tuple or a dict
    holds several inputs; labels may be words. Data are written once to the folder of data
    (`data.root`), as arrays-HASH.npz or table-HASH.csv, so that the command can continue the run.
    What a script or notebook defines, other processes cannot import: with ranks > 1 it must come
    from a file.

    `quiet=True` prints nothing but warnings.

    Ctrl-C raises KeyboardInterrupt when the run is saved; `resume=True` continues it. Torch's
    settings, random generators and signal handlers are as before when the call returns. Raises
    HpcfedError: ConfigError, DataError, DivergedError, CheckpointError, or StoppedError where the
    run was stopped from outside.
    """
    from hpcfed.launch import python  # here: `hpcfed list` runs nothing

    return python.run(job, ranks=ranks, resume=resume, launcher=launcher, **fields)


def load(run: str | Path) -> Run:
    """The results of a run, by its folder or its results.h5: a small read-only object, also while
    the run continues.
    """
    from hpcfed.results.run import Run, path_of  # here: `hpcfed list` reads no results

    return Run(path_of(run))


def load_model(
    source: str | Path | Run,
    client: int | str | None = None,
    own: Collection[str] = (),
    model: str = "",
    own_changed: bool = False,
) -> Trained | Ensemble:
    """A trained model: a torch.nn.Module in eval mode, on the CPU, that takes inputs as the data
    set has them.

    source: a run, or its folder, also during the run: its newest intact checkpoint; or a file
    of `hpcfed models` or `hpcfed adapt`, for which nothing of the run is needed, and no client.
    client: number or name of the client whose model it is.  model: "common", the global model;
    "ensemble", of which the predictions are the mean of all clients' models; default: common, or
    ensemble if the method has no global model.
    model.predict(new): predictions as columns, for a path (CSV, Parquet, NPZ, HDF5, texts, images),
    a DataFrame (which gives a DataFrame), or arrays.
    own: methods and models of your own that the run uses, as ["mine:tiny"]; their modules are
    imported, which runs their code, so only those that are named here are.
    own_changed: whether their code may differ from that with which the model was trained.
    model(x): scores [n, C].  model.represent(x): representations [n, d].  model.about:
    architecture, classes, job. Raises CheckpointError where there is no such model, ConfigError for
    a client that the run does not have.
    """
    from hpcfed.results.trained import load  # here: `hpcfed list` needs no torch

    if not isinstance(source, str | Path):
        from hpcfed.results.run import path_of  # here: a file needs nothing that reads runs

        source = path_of(source)
    return load.load_model(source, client, own, model, own_changed)
