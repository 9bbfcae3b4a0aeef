"""LEAF's data sets femnist and shakespeare, whose clients are people.

femnist: handwritten digits and letters by writer. shakespeare: the next character of a role's
lines. They come from LEAF's own JSON files, which its scripts write (`preprocess.sh -s niid -t
sample`): `users`, and `user_data` with x and y of each user, with the same users in `train` and
`test`. A user is a natural client, with test examples of its own.
Caldas et al., arXiv:1812.01097.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular
from hpcfed.data import check
from hpcfed.data.absent import absent
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.moments import moments
from hpcfed.data.user_arrays import Nodes, fits, hdf5, readable, whole
from hpcfed.tasks.next_token import NextToken

DIGITS, UPPER = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FEMNIST = (*DIGITS, *UPPER, *UPPER.lower())
SIZE = 28  # pixels
# LEAF's alphabet (models/utils/language_utils.py)
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80  # characters before the one to be predicted
PARTS = ("train", "test")
SOURCE = "LEAF's scripts (github.com/TalwalkarLab/leaf, data/{}/preprocess.sh) write them"


def femnist(name: str, root: Path, *_: object) -> DataSet:
    """Load images of digits and letters, [n, 1, 28, 28], uint8, 62 classes.

    The paper is white (255), as in LEAF. A writer is a natural client, with test examples of its
    own.
    The files are root/femnist/train/*.json and root/femnist/test/*.json, in which x are rows of 784
    numbers in 0..1.
    Raises DataError.
    """
    splits = []
    for x, y, users in users_of(name, root):
        pixels = np.array(x, np.float64)
        if pixels.shape != (len(y), SIZE * SIZE) or not ((pixels >= 0) & (pixels <= 1)).all():
            raise DataError(
                f"{root / name}: an image is {SIZE * SIZE} numbers in 0..1; run LEAF's script again"
            )
        images = np.round(pixels * 255).astype(np.uint8).reshape(-1, 1, SIZE, SIZE)
        labels = check.labels(np.array(y), len(y), f"{root / name}: y")
        check.below(labels, len(FEMNIST), f"{root / name}: y")
        splits.append(Split(images, labels, users))
    train, test = splits
    mean, std = moments(train.x)
    return DataSet(name, train, test, FEMNIST, mean, std, own_tests=True)


def shakespeare(name: str, root: Path, *_: object) -> DataSet:
    """Load sequences of 80 characters, each with the next character as label.

    Inputs are tokens [n, 80]: 1 for the first of LEAF's 80 characters, and 0 for a character that
    is not among them. A role is a natural client, with test examples of its own.
    The files are root/shakespeare/train/*.json and the same for test: x are texts of 80 characters,
    y the next one. If they are missing, root/shakespeare.h5 is read: groups `train` and `test` with
    `text`, all that a role says in each. It is cut into pieces of 81 characters, so that no
    character is in two examples. LEAF's windows overlap.
    Raises DataError.
    """
    if os.path.exists(root / f"{name}.h5") and not os.path.isdir(root / name):
        pairs = list(pieces(root / f"{name}.h5"))
    else:
        pairs = list(users_of(name, root))
    splits = []
    for x, y, users in pairs:
        if not all(isinstance(t, str) and len(t) == LENGTH for t in x):
            raise DataError(f"{root / name}: an x is a text of {LENGTH} characters")
        if not all(isinstance(t, str) and len(t) == 1 for t in y):
            raise DataError(f"{root / name}: a y is one character; run LEAF's script again")
        splits.append(known(codes(x), codes(y)[:, 0], users))
    classes = tuple("newline" if c == "\n" else "space" if c == " " else c for c in ALPHABET)
    train, test = splits
    return DataSet(
        name, train, test, classes, (), (), len(ALPHABET) + 1, task=NextToken(), own_tests=True
    )


def codes(texts: list[str]) -> np.ndarray:
    """Return texts of one length as numbers of characters, [n, L], int32.

    0 stands for a character that is not in the alphabet.
    """
    if not texts:
        return np.zeros((0, 1), np.int32)
    points = np.array([list(map(ord, text)) for text in texts])
    table = np.zeros(max(0x110000 if points.max() > 255 else 256, 1), np.int32)
    table[list(map(ord, ALPHABET))] = 1 + np.arange(len(ALPHABET))
    return table[points]


def known(x: np.ndarray, y: np.ndarray, users: np.ndarray) -> Split:
    """Return the examples whose next character is in the alphabet, with labels from 0."""
    valid = y > 0
    return Split(x[valid], y[valid].astype(np.int64) - 1, users[valid])


Users = tuple[list[Any], list[Any], np.ndarray]  # x, y and the number of the user of each example


def users_of(name: str, root: Path) -> Iterator[Users]:
    """Yield all examples of the training files, then of the test files; users numbered by name."""
    folders = [root / name / part for part in PARTS]
    paths = [sorted(f.glob("*.json")) if os.path.isdir(f) else [] for f in folders]
    if not all(paths):
        raise absent(
            name,
            root,
            f"{name}/train/*.json and {name}/test/*.json"
            + (f", or {name}.h5" if name == "shakespeare" else ""),
            SOURCE.format(name),
        )
    numbers: dict[str, int] = {}
    for files in paths:
        data: dict[str, Any] = {}
        for file in files:
            data |= read(file)
        if not numbers:
            numbers = {user: i for i, user in enumerate(sorted(data))}
        x, y, users = [], [], []
        for user in sorted(data.keys() & numbers.keys()):
            x += data[user]["x"]
            y += data[user]["y"]
            users += [numbers[user]] * len(data[user]["y"])
        if not y:
            raise DataError(f"{files[0].parent}: holds no example of a user of {PARTS[0]}")
        yield x, y, np.array(users, np.int64)


def read(path: Path) -> dict[str, Any]:
    """Return one file's `user_data`; raises DataError."""
    with readable(path, "run LEAF's script again"):
        fits(12 * os.stat(regular(path)).st_size, str(path))  # memory of the parsed numbers
        content = json.loads(path.read_text(encoding="utf-8"))
    data = content.get("user_data") if isinstance(content, dict) else None
    if not isinstance(data, dict):
        raise DataError(f"{path}: has no 'user_data'; run LEAF's script again")
    for user, examples in data.items():
        x, y = (examples.get(k) if isinstance(examples, dict) else None for k in ("x", "y"))
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y)):
            raise DataError(f"{path}: user {user!r:.50} has no lists x and y of one length")
    return data


def pieces(path: Path) -> Iterator[Users]:
    """Yield each split with the roles' texts cut into pieces of 80 characters and the next one."""
    with readable(path, "copy it again"), hdf5(path) as file:
        nodes = Nodes(file)
        texts = [
            check.texts(
                whole(nodes[f"{part}/text"], f"{path}: {part}/text"), f"{path}: {part}/text"
            )
            for part in PARTS
        ]
    for said in texts:
        x, y, users = [], [], []
        for user, text in enumerate(said):
            for start in range(0, len(text) - LENGTH, LENGTH + 1):
                x.append(text[start : start + LENGTH])
                y.append(text[start + LENGTH])
                users.append(user)
        yield x, y, np.array(users, np.int64)
