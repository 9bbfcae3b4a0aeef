"""CelebA as in LEAF: photographs of celebrities, smiling or not.

A celebrity is a natural client. LEAF resizes the images to 84x84 and uses celebrities with at least
five of them. The images come from torchvision's files, or its download. Of n images of a celebrity
int(0.9 n) are for training, as LEAF takes them, and the others for tests.
Liu et al., "Deep Learning Face Attributes in the Wild", ICCV 2015; Caldas et al. (LEAF),
arXiv:1812.01097.
Deviations: LEAF draws its test images from a generator of its own.
"""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from hpcfed.core.compat import import_torchvision
from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular
from hpcfed.core.rng import stream
from hpcfed.data.absent import absent
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.download import are_present, copy_existing, once
from hpcfed.data.moments import moments
from hpcfed.data.user_arrays import fits, readable
from hpcfed.tasks.binary import Binary

FOLDER, IMAGES = "celeba", "img_align_celeba"
IDENTITY, ATTRIBUTES = "identity_CelebA.txt", "list_attr_celeba.txt"
PARTS = (IDENTITY, ATTRIBUTES, IMAGES)  # in FOLDER
ARCHIVES = (f"{IMAGES}.zip", "*.txt")  # what torchvision downloads, in FOLDER
SIZE, LEAST, TRAIN = 84, 5, 0.9
ASKED = "Smiling"


def load(name: str, root: Path, download: bool = True, *_: object) -> DataSet:
    """Load CelebA from its files below root/celeba, else from torchvision's download to root.

    The files are identity_CelebA.txt, list_attr_celeba.txt and img_align_celeba/*.jpg.
    Images are [n, 3, 84, 84], uint8. A celebrity is a natural client, with test examples of its
    own.
    Raises DataError.
    """
    folder = root / FOLDER
    if not are_present(folder, PARTS):
        missing = absent(
            name,
            root,
            f"{FOLDER}/{IDENTITY}, {FOLDER}/{ATTRIBUTES} and {FOLDER}/{IMAGES}/*.jpg",
            "torchvision.datasets.CelebA fetches them, and so does the authors' page at CUHK",
        )
        if not download:
            raise missing
        try:
            once(name, root, lambda: are_present(folder, PARTS), lambda new: fetch(root, new))
        except Exception as error:  # torchvision and the network raise exceptions of any type
            raise DataError(
                f"{missing}\n  the download: {error or type(error).__name__}"
            ) from error
    files, y, users = faces(folder)
    fits(3 * SIZE * SIZE * len(files), f"{name}: its images")
    x = np.empty((len(files), 3, SIZE, SIZE), np.uint8)
    for i, file in enumerate(files):
        with readable(folder / IMAGES / file, "copy it again"):
            image = Image.open(regular(folder / IMAGES / file), formats=["JPEG"]).convert("RGB")
            x[i] = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)).transpose(
                2, 0, 1
            )
    test = held_out(users)
    both = Split(x, y, users)
    train = both.take(~test)
    return DataSet(
        name,
        train,
        both.take(test),
        ("not smiling", "smiling"),
        *moments(train.x),
        task=Binary(),
        own_tests=True,
    )


def fetch(root: Path, folder: Path) -> None:
    """Let torchvision download CelebA to a folder, with the archives that are in root already."""
    copy_existing(root, folder, [f"{FOLDER}/{archive}" for archive in ARCHIVES])
    import_torchvision().datasets.CelebA(str(folder), split="all", download=True)


def faces(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the files of celebrities with enough images, their labels, and their celebrities.

    Labels say whether the celebrity smiles.
    Raises DataError.
    """
    with readable(folder / IDENTITY, "copy it again"):
        rows = [row.split() for row in regular(folder / IDENTITY).read_text().splitlines() if row]
        who = {file: int(number) for file, number in rows}
    path = folder / ATTRIBUTES
    with readable(path, "copy it again"):
        _, names, *lines = regular(path).read_text().splitlines()
        if ASKED not in names.split():
            raise DataError(f"{path}: has no attribute {ASKED}; copy it again")
        at = 1 + names.split().index(ASKED)
        smiles = {(f := line.split())[0]: int(f[at]) for line in lines if line.strip()}
    if who.keys() != smiles.keys() or not who:
        raise DataError(f"{folder}: {IDENTITY} and {ATTRIBUTES} name other images; copy them again")
    ids, number = np.unique(list(who.values()), return_counts=True)
    chosen = set(ids[number >= LEAST].tolist())
    files = sorted(file for file, user in who.items() if user in chosen)
    if not files or any(os.path.basename(file) != file for file in files):
        raise DataError(
            f"{folder / IDENTITY}: no celebrity has {LEAST} images, or a name is a path"
        )
    y = np.array([smiles[file] > 0 for file in files], np.int64)
    return files, y, np.array([who[file] for file in files], np.int64)


def held_out(users: np.ndarray) -> np.ndarray:
    """Return which images are for tests, [n], bool."""
    test = np.zeros(len(users), bool)
    for user in np.unique(users):
        rows = np.flatnonzero(users == user)
        n = len(rows) - int(TRAIN * len(rows))
        test[stream(0, "celeba", int(user)).choice(rows, n, replace=False)] = True
    return test
