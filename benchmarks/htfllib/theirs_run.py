"""One run of HtFLlib: `theirs_run.py METHOD ROUNDS`, in a folder whose `system` is its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path[:0] = [os.getcwd()]

from setting import BATCH, CLIENTS, COMMON, EXAMPLES, LR, METHODS, MODELS, D, Net  # noqa: E402
from task import mend_torchvision  # noqa: E402

mend_torchvision()

from flcore.servers.serverfml import FML  # noqa: E402
from flcore.servers.serverlg import LG_FedAvg  # noqa: E402
from flcore.servers.serverproto import FedProto  # noqa: E402
from flcore.trainmodel import models  # noqa: E402

SERVERS = {"FedProto": FedProto, "LG-FedAvg": LG_FedAvg, "FML": FML}


def settings(method: str, rounds: int) -> SimpleNamespace:
    """What main.py makes of its command line; fields that the three methods read."""
    return SimpleNamespace(
        algorithm=method,
        dataset="fashion",
        device="cpu",
        goal="peer",
        num_classes=10,
        num_clients=CLIENTS,
        models=[f"Net({name!r}, args.num_classes)" for name in MODELS],
        global_model=f"Net({COMMON!r}, args.num_classes)",
        models_folder_name="",
        save_folder_name="temp",
        feature_dim=D,
        batch_size=BATCH,
        local_learning_rate=LR,
        local_epochs=1,
        global_rounds=rounds,
        eval_gap=rounds,
        join_ratio=1.0,
        random_join_ratio=False,
        few_shot=0,
        time_select=False,
        time_threthold=10000,
        top_cnt=100,
        auto_break=False,
        client_drop_rate=0.0,
        train_slow_rate=0.0,
        send_slow_rate=0.0,
        lamda=1.0,
        alpha=0.5,
        beta=0.5,
    )


def main() -> None:
    method, rounds = METHODS[sys.argv[1]], int(sys.argv[2])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    models.Net = Net
    os.chdir(Path("system"))
    server = SERVERS[method](settings(method, rounds), 0)
    server.train()  # rounds 0 to `rounds`; it evaluates before the first and the last
    timed = server.Budget[1:rounds]
    rate = len(timed) * CLIENTS * EXAMPLES / sum(timed)
    result = {"images_per_second": rate, "accuracy": server.rs_test_acc[-1]}
    print("\n" + json.dumps(result), flush=True)


main()
