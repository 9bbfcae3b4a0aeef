"""Sentiment140: negative and positive tweets, from the authors' CSV files or an HDF5 file.

Go, Bhayani and Huang, "Twitter Sentiment Classification using Distant Supervision", Stanford, 2009.
The HDF5 file has the form that `hpcfed.data.files` reads, with `text`, `labels` and, for the
natural partition, `users`.
"""

import csv
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcfed.core.encoder import Encoder
from hpcfed.core.errors import DataError
from hpcfed.core.paths import regular
from hpcfed.data import files
from hpcfed.data.dataset import READING, DataSet, Reading, Split
from hpcfed.data.download import are_present, once, retrieve
from hpcfed.data.text import encode

# 81 MB; not available by https
URL = "http://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip"
SHA256 = "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57"
FILES = ("training.1600000.processed.noemoticon.csv", "testdata.manual.2009.06.14.csv")
CLASSES = ("negative", "positive")
LABELS = {"0": 0, "4": 1}  # polarity 2, neutral, occurs only in the test file and is left out


def load(name: str, root: Path, download: bool, how: Reading = READING) -> DataSet:
    """Load the authors' two CSV files below root, or root/sentiment140.h5, or download the former.

    There are 1,600,000 training tweets labelled by their emoticons, and 359 test tweets labelled by
    hand. The author of a tweet is its user in the natural partition.
    Raises DataError that names the files, the folder and what to do.
    """
    present, hdf5 = are_present(root, FILES), root / "sentiment140.h5"
    if os.path.exists(hdf5) and not present:
        return replace(files.read(hdf5, Reading(how.text)), name=name)
    if not present:
        if not download:
            raise _missing(root, "downloading is switched off")
        fetch(root)
    parts, _ = files.number_users([read(root / file) for file in FILES])
    (train, test), tokens = encode(parts, how.text)
    encoder = Encoder(tokens=tokens)
    return DataSet(name, train, test, CLASSES, (), (), encoder.vocabulary, encoder=encoder)


def read(path: Path) -> Split:
    """Read the texts of one CSV file, without the neutral ones.

    The file is latin-1, with the columns polarity, id, date, query, user, text.
    Raises DataError with the number of a row that has another form.
    """
    try:
        with regular(path).open(encoding="latin-1", newline="") as file:
            polar = list(_rows(csv.reader(file), path))
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}; copy or download it again") from error
    if not polar:
        raise DataError(f"{path}: holds no text of polarity 0 or 4; copy or download it again")
    y, users, x = zip(*polar, strict=True)
    return Split(np.array(x, object), np.array(y, np.int64), np.array(users, object))


def _rows(lines: Iterable[list[str]], path: Path) -> Iterable[tuple[int, str, str]]:
    """Yield label, user and text of each row that is not neutral."""
    for number, fields in enumerate(lines, start=1):
        if len(fields) != 6 or fields[0] not in (*LABELS, "2"):
            raise DataError(
                f"{path}: row {number} is {fields[:1]} and {len(fields)} fields; a row has the "
                f"polarity 0, 2 or 4, "
                "id, date, query, user and text"
            )
        if fields[0] in LABELS:
            yield LABELS[fields[0]], fields[4], fields[5]


def fetch(root: Path, url: str = URL, sha256: str = SHA256) -> None:
    """Download the archive, verify its checksum, and unpack its two files below root.

    Raises DataError.
    """

    def fetch_archive(folder: Path) -> None:
        archive = folder / "trainingandtestdata.zip"
        retrieve(url, archive)
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            raise DataError(
                f"{url}: has the checksum {digest}, not {sha256}; it is another file, or damaged"
            )
        with zipfile.ZipFile(archive) as packed:
            for name in FILES:
                with packed.open(name) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
        archive.unlink()

    try:
        once("sentiment140", root, lambda: are_present(root, FILES), fetch_archive)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise _missing(root, f"{url}: {error}") from error


def _missing(root: Path, reason: str) -> DataError:
    return DataError(
        f"sentiment140: cannot be loaded from {root} ({reason})\n"
        f"  expected there: {', '.join(FILES)}, or sentiment140.h5\n"
        f"  copy them there, name the folder that has them (--data.root), or a file (--data.name "
        f"PATH.h5)"
    )
