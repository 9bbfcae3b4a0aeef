"""Small runs with result file, partition and checkpoints, as trained models are taken from."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hpcfed.comm import Serial
from hpcfed.engine.decide import world
from hpcfed.engine.rounds import Rounds
from hpcfed.engine.run import open_results
from hpcfed.engine.setup import federation
from hpcfed.models.trained import Trained
from hpcfed.storage import names
from hpcfed.storage.record import Record, load
from tests import saving
from tests.contract import toy


def saved_run(
    folder: Path,
    method: str,
    *flags: str,
    rounds: int = 2,
    saves: tuple[int, ...] = (),
    before_save: Callable[[Rounds], None] = lambda rounds: None,
) -> Path:
    """The folder of a toy run after so many rounds. saves: rounds after which there is a
    checkpoint; default: the last.

    Every client is evaluated with what it would receive too.
    """
    folder.mkdir(parents=True)
    job = toy.job(method, "--out", str(folder), "--evaluate.received", *flags)
    facts = world(job, Serial())
    going = Rounds(federation(job, Serial(), facts))
    results = open_results(job, folder, facts, going)
    facts.partition.save(names.partition_file(folder))
    while going.t < rounds:
        results.append(going.step()[0])
        if going.t in (saves or (rounds,)):
            before_save(going)
            saving.save(going, folder)
    results.finish()
    return folder


def counted(model: Trained, record: Record) -> tuple[float, float]:
    """The model's accuracy on its client's test examples, and what the run recorded of it."""
    about = model.about
    recorded = record.column(about.counted)[about.rounds - 1][about.client]
    return accuracy_on(model, about.client), float(recorded)


def accuracy_on(model: Trained, k: int) -> float:
    """The model's accuracy on the test examples of client k."""
    x, y = tests_of(k)
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def loss_on(model: Trained, k: int) -> float:
    """The model's loss on the test examples of client k."""
    x, y = tests_of(k)
    with torch.no_grad():
        return float(cross_entropy(model.scores(model.prepare(x)), y))


def tests_of(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of client k's test examples."""
    rows = toy.partition(np.arange(96) % toy.CLASSES).test[k]
    with np.load(toy.folder() / "data.npz") as data:
        return torch.from_numpy(data["x_test"][rows]), torch.from_numpy(data["y_test"][rows])


def with_tests() -> list[int]:
    """The clients that have test examples."""
    return [k for k, n in enumerate(toy.TESTS) if n]


__all__ = ["accuracy_on", "counted", "load", "loss_on", "saved_run", "with_tests"]
