"""FLUTE: its FedAvg over torch.distributed (gloo); more than one process is its server and as many
workers.

FLUTE is no package: it runs from the root of its repository with an experiment in a folder of it,
so a folder of links to a copy (FLUTE_SOURCE) is made, with our experiment in it.
"""

import os
import runpy
import sys
from pathlib import Path

import yaml
from task import BATCH, COHORT, LR, Watch, accuracy, arguments

HERE = Path(__file__).resolve().parent


def settings(options):
    """FLUTE's configuration file."""
    sizes = {"batch_size": BATCH}
    data = {"val": sizes | {"val_data": None}, "test": sizes | {"test_data": None}}
    train = sizes | {
        "list_of_train_data": os.path.basename(options.data),
        "desired_max_samples": 10**6,
    }
    return {
        "model_config": {"model_type": "CNN", "model_folder": "experiments/peer/model.py"},
        "dp_config": {"enable_local_dp": False},
        "privacy_metrics_config": {"apply_metrics": False},
        "strategy": "FedAvg",
        "server_config": {
            "wantRL": False,
            "resume_from_checkpoint": False,
            "do_profiling": False,
            "optimizer_config": {"type": "sgd", "lr": 1.0},
            "annealing_config": {
                "type": "step_lr",
                "step_interval": "epoch",
                "gamma": 1.0,
                "step_size": 100,
            },
            "val_freq": 10**6,
            "rec_freq": 10**6,
            "initial_val": False,
            "initial_rec": False,
            "max_iteration": options.warm + options.rounds,
            "num_clients_per_iteration": COHORT,
            "data_config": data,
            "type": "model_optimization",
            "aggregate_median": "softmax",
            "initial_lr_client": LR,
            "lr_decay_factor": 1.0,
            "weight_train_loss": "train_loss",
            "best_model_criterion": "loss",
            "fall_back_to_best_model": False,
            "softmax_beta": 1.0,
        },
        "client_config": {
            "do_profiling": False,
            "ignore_subtask": False,
            "data_config": {"train": train},
            "optimizer_config": {"type": "sgd", "lr": LR},
            "type": "optimization",
        },
    }


def root(folder, source):
    """A folder that looks like the root of FLUTE's repository, with our experiment; the same for
    all processes.
    """
    experiments = Path(folder, "experiments")
    experiments.mkdir(parents=True, exist_ok=True)
    links = {
        Path(folder, name): source / name
        for name in ("core", "utils", "extensions", "e2e_trainer.py")
    }
    links |= {
        experiments / "__init__.py": source / "experiments/__init__.py",
        experiments / "peer": HERE / "flute",
    }
    for link, target in links.items():
        try:
            link.symlink_to(target)
        except FileExistsError:
            continue
    return Path(folder)


def watched(options):
    """Tick at the end of each round, when FLUTE has saved the model; report after the last."""
    from core.server import OptimizationServer

    watch, save = Watch(options), OptimizationServer.backup_models

    def backup_models(self, i):
        save(self, i)
        watch.tick()
        if len(watch.stamps) == watch.end:
            watch.report(accuracy(options.data, self.worker_trainer.model.net))

    OptimizationServer.backup_models = backup_models


def main():
    options = arguments()
    data = os.path.abspath(options.data)
    folder = root(options.folder, Path(os.environ["FLUTE_SOURCE"]).resolve())
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PEER_DATA"] = data
    config = Path(f"config-{os.environ.get('RANK', 0)}.yaml")
    config.write_text(yaml.safe_dump(settings(options)))
    watched(options)
    sys.argv = [
        "e2e_trainer.py",
        "-config",
        str(config),
        "-outputPath",
        "out",
        "-dataPath",
        os.path.dirname(data),
        "-task",
        "peer",
        "-backend",
        "gloo",
    ]
    runpy.run_path("e2e_trainer.py", run_name="__main__")


main()
