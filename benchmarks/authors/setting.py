"""The setting in which the authors' code and ours are compared, and the data for it.

FedClassAvg (Jang et al., ICPP 2022) on Fashion-MNIST: four clients with the paper's four
architectures on two ranks, two classes and equally many examples each, batches of 64, two augmented
views, Adam; all are evaluated each round.
"""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import h5py
import numpy as np

RANKS, CLIENTS, BATCH, STEPS = 2, 4, 64, 5  # steps of a client in a round
EXAMPLES = BATCH * STEPS  # of a client
WARM = 2  # rounds that are not timed: ours moves clients after the second
RAW = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def prepare(source: Path, folder: Path) -> None:
    """Write the first examples of Fashion-MNIST twice: as torchvision's files for theirs, as
    ours.npz for us.
    """
    with h5py.File(source) as file:
        n = CLIENTS * EXAMPLES
        arrays = {
            "x_train": file["train/images"][:n],
            "y_train": file["train/labels"][:n].astype(np.int64),
            "x_test": file["test/images"][:n],
            "y_test": file["test/labels"][:n].astype(np.int64),
        }
    np.savez(folder / "ours.npz", **arrays)
    raw = folder / "data/FashionMNIST/raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
        (raw / RAW[name]).write_bytes(head + array.astype(np.uint8).tobytes())


class Watch:
    """Counts rounds: `tick` after each one."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def tick(self) -> None:
        self.stamps.append(time.perf_counter())

    def report(self) -> None:
        """One line of JSON with the mean seconds of a round after the warm ones."""
        timed = self.stamps[WARM - 1 :]
        print(
            "\n" + json.dumps({"seconds_per_round": (timed[-1] - timed[0]) / (len(timed) - 1)}),
            flush=True,
        )
