"""A run in MLflow, at MLFLOW_TRACKING_URI, or else as files in the run's folder.

`MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/mlflow` shows these. MLflow 3
accepts files only with this variable; they need no database and no server, and work on any disk of
a cluster.
"""

from __future__ import annotations

import os
import re
from time import time

from hpcfed.report.sinks.base import Sink
from hpcfed.storage import names
from hpcfed.storage.fields import flat
from hpcfed.storage.record import Header

NAME = "mlflow"
ENDS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
BATCH = 100  # parameters that one request may have
LONG = 500  # characters of a parameter's value, the least that any version takes
EVERY = "rounds/seconds"  # a number that every round has


class MLflow(Sink):
    """Sink for MLflow; a resumed run continues under the same id."""

    package = "mlflow"

    def begin(self, header: Header, done: int) -> int:
        from mlflow.tracking import MlflowClient

        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        here = names.sink_folder(self.run, NAME).resolve().as_uri()
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or here)
        mark = self.read_mark(NAME, done)
        self.id = mark["id"] if mark else self.create(header)
        self.client.update_run(self.id, status="RUNNING")
        self.mark(NAME, id=self.id)
        return max((m.step for m in self.client.get_metric_history(self.id, EVERY)), default=0)

    def create(self, header: Header) -> str:
        """Create a run with the job's fields as parameters, and return its id."""
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "hpcfed")
        experiment = self.client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self.client.create_experiment(name)
        run = self.client.create_run(place, run_name=self.run.resolve().name).info.run_id
        params = [Param(name, str(value)[:LONG]) for name, value in flat(header["job"]).items()]
        for start in range(0, len(params), BATCH):
            self.client.log_batch(run, params=params[start : start + BATCH])
        return run

    def round(self, t: int, numbers: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time() * 1000)
        self.client.log_batch(
            self.id, [Metric(clean_name(name), value, now, t) for name, value in numbers.items()]
        )

    def end(self, status: str) -> None:
        self.client.set_terminated(self.id, ENDS[status])


def clean_name(name: str) -> str:
    """Return a name without characters that MLflow refuses, such as the @ of an architecture."""
    return re.sub(r"[^\w\-./ ]", "_", name)
