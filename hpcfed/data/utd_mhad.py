"""UTD-MHAD: 27 actions of 8 people, each four times, by accelerometer, gyroscope and skeleton.

Chen, Jafari and Kehtarnavaz, "UTD-MHAD: A Multimodal Dataset for Human Action Recognition Utilizing
a Depth Camera and a Wearable Inertial Sensor", ICIP 2015. There are 861 sequences; their video is
not read. A person is a natural client. Training examples are the first three trials, test examples
the fourth.
Deviations: the authors train on four people and test on the others, so that no client could be
tested on its own examples. Sequences are resampled to one length by linear interpolation in time.
"""

import os
import re
from pathlib import Path

import numpy as np

from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular
from hpcfed.data import check
from hpcfed.data.absent import absent
from hpcfed.data.dataset import DataSet, Split, several
from hpcfed.data.user_arrays import Nodes, hdf5, readable, whole

INERTIAL, SKELETON = 128, 48  # steps in time
JOINTS = 20
SUBJECTS, TRIALS, TEST = 8, 4, 4  # TEST: the trial for tests
CLASSES = (
    "swipe left",
    "swipe right",
    "wave",
    "clap",
    "throw",
    "arm cross",
    "basketball shoot",
    "draw X",
    "draw circle (clockwise)",
    "draw circle (counter clockwise)",
    "draw triangle",
    "bowling",
    "boxing",
    "baseball swing",
    "tennis swing",
    "arm curl",
    "tennis serve",
    "push",
    "knock",
    "catch",
    "pickup and throw",
    "jog",
    "walk",
    "sit to stand",
    "stand to sit",
    "lunge",
    "squat",
)
FILE = "utd_mhad.h5"
FOLDERS = ("UTD-MHAD/Inertial", "UTD-MHAD/Skeleton")
NAME = re.compile(r"a(\d+)_s(\d+)_t(\d+)_inertial\.mat")


def load(name: str, root: Path, *_: object) -> DataSet:
    """Load the authors' MATLAB files below root/UTD-MHAD, else root/utd_mhad.h5.

    MATLAB: Inertial/a1_s1_t1_inertial.mat with d_iner [T, 6], Skeleton/a1_s1_t1_skeleton.mat with
    d_skel [20, 3, T], for each action, subject and trial.
    HDF5: groups `train` and `test`, with `inertial` [n, 128, 6], `skeleton` [n, 48, 20, 3],
    `labels`, `subject` and `trial`. All examples are divided anew into training and test examples.
    A person is a natural client. The fourth trial of each action is for tests.
    Raises DataError.
    """
    folders = [root / folder for folder in FOLDERS]
    if all(os.path.isdir(folder) for folder in folders):
        arrays = read_matlab(*folders)
    elif os.path.exists(root / FILE):
        arrays = read_hdf5(root / FILE)
    else:
        raise absent(
            name,
            root,
            f"{FOLDERS[0]}/*.mat and {FOLDERS[1]}/*.mat, or {FILE}",
            "the archives Inertial.zip and Skeleton.zip are on the authors' page at UT Dallas, "
            "'UTD Multimodal Human Action Dataset'",
        )
    inertial, skeleton, y, subject, trial = arrays
    x = {
        "accelerometer": inertial[:, :3],
        "gyroscope": inertial[:, 3:],
        "skeleton": skeleton.reshape(len(y), 3 * JOINTS, SKELETON),
    }
    test = trial == TEST
    if not test.any() or test.all():
        raise DataError(f"{name}: {root} has no sequences of trial {TEST}, or only those")
    both = Split({m: np.ascontiguousarray(v, np.float32) for m, v in x.items()}, y, subject)
    return several(name, both.take(~test), both.take(test), CLASSES, own_tests=True)


Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def read_hdf5(path: Path) -> Arrays:
    """Read inertial data, skeletons, labels, subjects and trials of all sequences.

    Inertial data are [n, 6, 128], skeletons [n, 20, 3, 48].
    """
    keys = ("inertial", "skeleton", "labels", "subject", "trial")
    with readable(path, "copy it again"), hdf5(path) as file:
        nodes = Nodes(file)
        for key in keys:
            if f"train/{key}" not in nodes or f"test/{key}" not in nodes:
                raise DataError(f"{path}: has no train/{key} or no test/{key}; copy it again")
        arrays = [
            np.concatenate([whole(nodes[f"{p}/{key}"], f"{path}: {p}/{key}") for p in PARTS])
            for key in keys
        ]
    inertial, skeleton, y, subject, trial = arrays
    n = len(y)
    wanted = {"inertial": (n, INERTIAL, 6), "skeleton": (n, SKELETON, JOINTS, 3)}
    for key, v in (("inertial", inertial), ("skeleton", skeleton)):
        if v.shape != wanted[key] or v.dtype.kind != "f" or not np.isfinite(v).all():
            raise DataError(
                f"{path}: {key} is {v.dtype} {list(v.shape)}; it holds finite numbers, "
                f"{list(wanted[key])}"
            )
    y = check.labels(y, n, f"{path}: labels")
    check.below(y, len(CLASSES), f"{path}: labels")
    subject, trial = (
        check.labels(v, n, f"{path}: {w}") for v, w in ((subject, "subject"), (trial, "trial"))
    )
    return inertial.transpose(0, 2, 1), skeleton.transpose(0, 2, 3, 1), y, subject, trial


PARTS = ("train", "test")


def read_matlab(inertial: Path, skeleton: Path) -> Arrays:
    """Read the authors' files as `read_hdf5`, with sequences resampled to one length."""
    rows = []
    for file in sorted(os.listdir(inertial)):
        if (match := NAME.fullmatch(file)) is None:
            continue
        action, subject, trial = map(int, match.groups())
        if not 1 <= action <= len(CLASSES):
            raise DataError(f"{inertial / file}: there are actions 1 to {len(CLASSES)}")
        other = skeleton / file.replace("inertial", "skeleton")
        motion = matrix(inertial / file, "d_iner", 2).T  # [6, T]
        joints = matrix(other, "d_skel", 3)  # [20, 3, T]
        if len(motion) != 6 or joints.shape[:2] != (JOINTS, 3):
            raise DataError(f"{inertial / file}: d_iner is [T, 6], and d_skel is [20, 3, T]")
        rows.append(
            (stretch(motion, INERTIAL), stretch(joints, SKELETON), action - 1, subject, trial)
        )
    if not rows:
        raise DataError(f"{inertial}: holds no file as a1_s1_t1_inertial.mat; unpack it again")
    moved_, joints_, y, subject_, trial_ = zip(*rows, strict=True)
    numbers = (np.array(v, np.int64) for v in (y, subject_, trial_))
    return (np.stack(moved_), np.stack(joints_), *numbers)  # type: ignore[return-value]


def matrix(path: Path, name: str, dimensions: int) -> np.ndarray:
    """Return one array of a MATLAB file, float64; raises DataError."""
    from scipy.io import loadmat

    with readable(path, "unpack it again"):
        values = loadmat(regular(path), variable_names=[name]).get(name)
    if values is None or values.dtype.kind not in "fiu" or values.ndim != dimensions:
        raise DataError(f"{path}: holds no {name} of {dimensions} dimensions; unpack it again")
    if not np.isfinite(values).all() or not values.shape[-1 if dimensions == 3 else 0]:
        raise DataError(f"{path}: {name} is empty or not finite; unpack it again")
    return values.astype(np.float64)


def stretch(x: np.ndarray, steps: int) -> np.ndarray:
    """Resample a sequence [..., T] at equally spaced times: [..., steps].

    Interpolation is linear.
    """
    at = np.linspace(0, x.shape[-1] - 1, steps)
    low = np.minimum(at.astype(np.int64), max(x.shape[-1] - 2, 0))
    high = np.minimum(low + 1, x.shape[-1] - 1)
    return x[..., low] + (at - low) * (x[..., high] - x[..., low])
