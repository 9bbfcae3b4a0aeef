"""Ours: an ordinary job, started as on the command line; only the rounds are watched."""

import sys

from task import BATCH, CLIENTS, COHORT, DEVICE, LR, Watch, arguments, file

from hpcfed import main
from hpcfed.engine import run


def watched(watch):
    """The loop of a run that ticks after each round, when its record is written."""

    class Watched(run.Loop):
        def write(self, row):
            super().write(row)
            watch.tick()
            watch.accuracy = row["rounds/accuracy_common"]

    return Watched


def words(given):
    """The command line. The last round, in which all clients are evaluated, comes after those that
    are timed.
    """
    job = {
        "rounds": given.warm + given.rounds + 1,
        "clients": CLIENTS,
        "participation": COHORT / CLIENTS,
        "algorithm.name": "fedavg",
        "models.mix": "cnn",
        "data.name": file(given.data),
        "data.partition": "iid",
        "local.optimiser": "sgd",
        "local.lr": LR,
        "local.batch": BATCH,
        "local.augment": "none",
        "run.device": DEVICE,
        "evaluate.every": 10**6,
        "checkpoint.every": 0,
        "checkpoint.minutes": 0,
        "out": given.folder,
        "overwrite": "true",
        "quiet": "true",
        "evaluate.common": "true",
    }
    if given.engine:
        job["training.engine"] = given.engine
    return [word for name, value in job.items() for word in (f"--{name}", str(value))]


def report():
    given = arguments()
    watch = Watch(given)
    run.Loop = watched(watch)
    status = main.main(words(given))
    if watch.stamps and status == 0:
        watch.report(float(watch.accuracy))
    return status


sys.exit(report())
