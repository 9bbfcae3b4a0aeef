"""The table of the README's first page, heart.csv: heart disease at four hospitals, as a user would
have it.

`python benchmarks/heart.py ROOT` writes it to where one starts, from UCI's four files or
heart_disease.h5 in ROOT; without them they are downloaded there (Janosi et al., CC BY 4.0).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from hpcfed.data import heart

COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal"),
)


def write(root: Path, path: Path) -> None:
    """The rows of all hospitals, one after the other; what is missing is empty."""
    if (root / heart.FILE).exists():
        tables = heart.read_hdf5(root / heart.FILE)
    else:
        if not all((root / file).exists() for file in heart.FILES):
            heart.fetch(root)
        tables = [heart.read(root / file) for file in heart.FILES]
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*COLUMNS, "hospital", "sick"])
        for hospital, table in zip(heart.HOSPITALS, tables, strict=True):
            for row in table:
                values = ["" if np.isnan(value) else f"{value:g}" for value in row[:-1]]
                rows.writerow([*values, hospital, "yes" if row[-1] > 0 else "no"])


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "data"), Path("heart.csv"))
