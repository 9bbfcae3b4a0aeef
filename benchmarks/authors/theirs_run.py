"""The authors' fedclassavg.py, run from their folder as it is, but for what this machine lacks.

`theirs_run.py FOLDER ROUNDS`, under mpirun, in a folder with data/. Changed while loading: no GPU,
numpy's old name of infinity, stand-ins for wandb (which wants an account) and for three libraries
that training does not use, and one client of each architecture (their rule gives two ranks only two
of them).
"""

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from setting import Watch

from hpcfed.core.compat import import_torchvision

MODELS = ("resnet", "shufflenet", "googlenet", "alexnet")


def stand_ins(watch):
    """Modules that their code imports; wandb.log tells when a round ends."""
    wandb = ModuleType("wandb")
    wandb.run, wandb.finish = SimpleNamespace(), lambda: None
    wandb.init = lambda config, **_: setattr(wandb, "config", config)
    wandb.log = lambda values, step: watch.tick() if "global/acc" in values else None
    sklearnex = ModuleType("sklearnex")
    sklearnex.patch_sklearn = lambda: None
    tqdm = ModuleType("tqdm")
    tqdm.tqdm = iter
    sys.modules |= {
        "wandb": wandb,
        "sklearnex": sklearnex,
        "seaborn": ModuleType("seaborn"),
        "tqdm": tqdm,
    }


def one_of_each():
    """The first model that their code builds is the server's, the next are the clients', in
    order.
    """
    import supcon_utils

    build, names = supcon_utils.define_model, iter((MODELS[0], *MODELS))
    supcon_utils.define_model = lambda modelname, **how: build(modelname=next(names), **how)


def main():
    theirs, rounds, watch = Path(sys.argv[1]).resolve(), sys.argv[2], Watch()
    torch.set_num_threads(1)
    np.Inf = np.inf
    import_torchvision()
    stand_ins(watch)
    sys.path.insert(0, str(theirs / "src"))
    one_of_each()
    os.makedirs("sweep/best", exist_ok=True)  # a folder of this name: their code saves no models
    sys.argv = [
        "fedclassavg.py",
        "--data",
        "fashion-mnist",
        "--models",
        ",".join(MODELS),
        "--mu",
        "0.4662",
        "--max_rounds",
        rounds,
        "--output_path",
        "sweep",
    ]
    source = (theirs / "src/fedclassavg.py").read_text()
    source = source.replace("'cuda:{}'.format(args.gpu_id)", "'cpu'").replace("'cuda:0'", "'cpu'")
    changed = Path(f"fedclassavg-{os.getpid()}.py")
    changed.write_text(source)
    runpy.run_path(str(changed), run_name="__main__")
    if watch.stamps:
        watch.report()


main()
