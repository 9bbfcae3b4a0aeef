"""The result files of a study in one archive, `runs.tar.xz` beside the study's tables.

`python benchmarks/archive.py unpack [NAME ...]` writes the result files of the studies in
`results/` to where their archives are; `hpcfed table`, `compare`, `plot` and `hpcfed.load` read
them there. `pack` makes the archives of the result files that are there. Files are stored whole:
every column of every run, in about a twentieth of the bytes. git tracks the archives, and ignores
what is unpacked.

Benchmarks call both themselves: `unpack` before they look for runs, `pack` when they are done.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import lzma
import os
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from runs import RESULTS

STUDIES = (
    *("ablation", "ablation-digits", "ablation-long", "ablation-parts"),
    *("demo", "evidence", "heart", "methods", "own"),
)
ARCHIVE, STAMP = "runs.tar.xz", ".unpacked"  # STAMP: the archive to which the files belong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("pack", "unpack"))
    parser.add_argument("names", nargs="*", choices=[*STUDIES, []], metavar="NAME")
    options = parser.parse_args()
    for name in options.names or STUDIES:
        {"pack": pack, "unpack": unpack}[options.command](RESULTS / name)


def unpack(study: Path) -> None:
    """Write the result files of the archive in this folder, unless files are there and it is the
    archive that was unpacked or packed there last: what was removed or added since then stays so.
    """
    archive, stamp = study / ARCHIVE, study / STAMP
    if not archive.exists():
        return
    if any(study.rglob("*.h5")) and stamp.exists() and stamp.read_text() == digest(archive):
        return
    with TemporaryDirectory(dir=study) as place, tarfile.open(archive, "r:xz") as file:
        file.extractall(place, filter="data")
        for path in Path(place).rglob("*.h5"):  # each at once, for others may unpack beside this
            target = study / path.relative_to(place)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
    stamp.write_text(digest(archive))


def pack(study: Path) -> None:
    """Replace the folder's archive by one of its result files, if they differ from those in it.

    The same files give the same bytes. A folder without result files has no archive.
    """
    archive, stamp, content = study / ARCHIVE, study / STAMP, tar(study)
    if not content:
        archive.unlink(missing_ok=True)
        stamp.unlink(missing_ok=True)
        return
    if not archive.exists() or lzma.decompress(archive.read_bytes()) != content:
        part = archive.with_suffix(".part")
        part.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
        os.replace(part, archive)
    stamp.write_text(digest(archive))


def tar(study: Path) -> bytes:
    """The result files of a folder, by name, without owners and dates; nothing for none."""
    files, out = sorted(study.rglob("*.h5")), io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
        for path in files:
            member = tarfile.TarInfo(path.relative_to(study).as_posix())
            member.size = path.stat().st_size
            with open(path, "rb") as data:
                file.addfile(member, data)
    return out.getvalue() if files else b""


def digest(archive: Path) -> str:
    return hashlib.sha256(archive.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
