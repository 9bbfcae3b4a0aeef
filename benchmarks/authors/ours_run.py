"""Our FedClassAvg in the same setting: `ours_run.py ROUNDS ENGINE`, under mpirun, in a folder with
ours.npz.
"""

import sys

from setting import BATCH, CLIENTS, STEPS, Watch

from hpcfed import main
from hpcfed.engine import run

JOB = {
    "preset": "authors",
    "clients": CLIENTS,
    "algorithm.name": "fedclassavg",
    "algorithm.rho": 0.4662,
    "models.mix": "resnet18,shufflenetv2,googlenet,alexnet",
    "data.name": "ours.npz",
    "data.partition": "classes",
    "local.lr": 1e-4,
    "local.betas": "0.5,0.999",
    "local.batch": BATCH,
    "local.steps": STEPS,
    "evaluate.before": "false",
    "checkpoint.every": 0,
    "checkpoint.minutes": 0,
    "out": "ours",
    "overwrite": "true",
    "quiet": "true",
}


def report():
    """Run the job and tell the seconds of its rounds."""
    rounds, engine = sys.argv[1:3]
    watch = Watch()

    class Watched(run.Loop):
        def write(self, row):
            super().write(row)
            watch.tick()

    run.Loop = Watched
    job = JOB | {"rounds": rounds} | ({"training.engine": engine} if engine != "default" else {})
    status = main.main([word for name, value in job.items() for word in (f"--{name}", str(value))])
    if watch.stamps and status == 0:  # what other ranks than 0 print goes nowhere
        watch.report()
    return status


sys.exit(report())
