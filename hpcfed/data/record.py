"""A data set in memory: two splits as arrays, and the few facts that models and augmentation
need.
"""

import json
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]


class Text(NamedTuple):
    """How texts become rows of numbers: at most `vocabulary` different ones, `tokens` of them in a
    row.
    """

    vocabulary: int = 10_000
    tokens: int = 32


TEXT = Text()


@dataclass(frozen=True)
class Split:
    """One split.

    x: [n, channels, height, width], uint8 (0..255) or float32 (0..1); or tokens, [n, L], int32, 0
    is padding.
    y: [n], int64, 0..C-1; or survival times, [n, 2], float32: time, and 1 where the event was seen
    then, 0 where it had not come yet (censored).
    users: [n], int64, the natural client of each example, or None where the data name none.
    """

    x: np.ndarray
    y: np.ndarray
    users: np.ndarray | None = None

    @property
    def strata(self) -> np.ndarray:
        """[n], int64, by what examples are drawn in proportion: labels; of survival times whether
        the event was seen.
        """
        return self.y if self.y.ndim == 1 else self.y[:, 1].astype(np.int64)


@dataclass(frozen=True)
class DataSet:
    """Training and test split of one data set.

    classes: C names.  mean, std: one number a channel, on the 0..1 scale where x is uint8, else on
    the scale of x; over the training split; empty for tokens.  vocabulary: how many different
    tokens there are, padding included; 0 for images.  task: what the labels are, one of
    `hpcfed.config.metrics.TASKS`: "classes"; "binary", two classes of which the second is positive
    and rare; "next", the token that follows; "survival", times, and a model has one output, the
    logarithm of the risk, which `classes` names.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    vocabulary: int = 0
    task: str = "classes"


def to_arrays(data: DataSet) -> Arrays:
    """The data set as arrays alone, to be shared between the ranks of a node; the facts are JSON
    bytes.
    """
    names = ("name", "classes", "mean", "std", "vocabulary", "task")
    facts = {name: getattr(data, name) for name in names}
    arrays = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
    for part, split in (("train", data.train), ("test", data.test)):
        fields = {"x": split.x, "y": split.y, "users": split.users}
        arrays |= {f"{part}_{key}": value for key, value in fields.items() if value is not None}
    return arrays


def from_arrays(arrays: Arrays) -> DataSet:
    """What `to_arrays` took apart; the splits are views of the given arrays, nothing is copied."""
    facts = json.loads(arrays["facts"].tobytes())
    parts = ("train", "test")
    train, test = (
        Split(arrays[f"{p}_x"], arrays[f"{p}_y"], arrays.get(f"{p}_users")) for p in parts
    )
    rows = {key: tuple(facts[key]) for key in ("classes", "mean", "std")}
    return DataSet(
        facts["name"], train, test, **rows, vocabulary=facts["vocabulary"], task=facts["task"]
    )
