"""The task that HtFLlib and hpcfed are both given, and its data in the files of each."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import h5py
import numpy as np
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1] / "evidence"))

import miniature

CLIENTS, EXAMPLES, TESTS, OWN_CLASSES, BATCH, LR, D = 20, 200, 50, 5, 10, 0.05, 64
MODELS, COMMON = ("residual", "shuffled", "inception", "plain"), "plain"
METHODS = {  # ours: theirs
    "fedproto": "FedProto",
    "lgfedavg": "LG-FedAvg",
    "fml": "FML",
}
MEAN, STD = 0.2860, 0.3530


class Net(nn.Module):
    """One of MODELS with a linear head, `fc`, as HtFLlib looks for it."""

    def __init__(self, name: str, classes: int):
        super().__init__()
        self.body = getattr(miniature, name)((1, 28, 28), D)
        self.fc = nn.Linear(D, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def prepare(source: Path, folder: Path) -> None:
    """Write the examples of all clients: ours.h5, and a file a client as HtFLlib has them."""
    with h5py.File(source) as file:
        splits = {
            split: (file[f"{split}/images"][()], file[f"{split}/labels"][()], number)
            for split, number in (("train", EXAMPLES), ("test", TESTS))
        }
    with h5py.File(folder / "ours.h5", "w") as ours:
        for split, (x, y, number) in splits.items():
            rows = shares(y, number // OWN_CLASSES)
            at = np.concatenate(rows)
            ours[f"{split}/images"], ours[f"{split}/labels"] = x[at], y[at].astype(np.int64)
            ours[f"{split}/users"] = np.repeat(np.arange(CLIENTS), number)
            theirs = folder / "dataset/fashion" / split
            theirs.mkdir(parents=True)
            for k, labels in enumerate(rows):
                images = ((x[labels].astype(np.float32) / 255 - MEAN) / STD)[:, None]
                data = np.array({"x": images, "y": y[labels].astype(np.int64)}, dtype=object)
                np.savez(theirs / f"{k}.npz", data=data)
        ours.attrs["classes"] = json.dumps([str(c) for c in range(10)])


def shares(y: np.ndarray, each: int) -> list[np.ndarray]:
    """The rows of each client: an equal number of each of its classes, k to k + OWN_CLASSES - 1,
    mixed.
    """
    heaps = [list(np.flatnonzero(y == c)) for c in range(10)]
    parts = []
    for k in range(CLIENTS):
        classes = [(k + i) % 10 for i in range(OWN_CLASSES)]
        labels = np.array([[heaps[c].pop() for c in classes] for _ in range(each)])
        parts.append(labels.ravel())  # class after class in turn: no batch is of one class
    return parts
