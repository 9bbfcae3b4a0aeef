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


def words(options):
    """The command line. The last round, in which all clients are evaluated, comes after those that
    are timed.
    """
    job = {
        "rounds": options.warm + options.rounds + 1,
        "clients": CLIENTS,
        "participation": COHORT / CLIENTS,
        "algorithm.name": "fedavg",
        "models.mix": "cnn",
        "data.name": file(options.data),
        "data.partition": "iid",
        "local.optimiser": "sgd",
        "local.lr": LR,
        "local.batch": BATCH,
        "local.augment": "none",
        "run.device": DEVICE,
        "run.precision": options.precision,
        "evaluate.every": 10**6,
        "checkpoint.every": 0,
        "checkpoint.minutes": 0,
        "out": options.folder,
        "overwrite": "true",
        "quiet": "true",
        "evaluate.common": "true",
    }
    if options.engine:
        job["training.engine"] = options.engine
    return [word for name, value in job.items() for word in (f"--{name}", str(value))]


def report():
    options = arguments()
    watch = Watch(options)
    run.Loop = watched(watch)
    status = main.main(words(options))
    if watch.stamps and status == 0:
        watch.report(float(watch.accuracy))
    return status


sys.exit(report())
