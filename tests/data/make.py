"""Runs of a few KB in the formats that this hpcfed writes: files that every later one must open.

`python -m tests.data.make` adds the folder of the present versions, once; it is then committed, and
never made again.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from hpcfed.storage import names
from hpcfed.storage.atomic import VERSIONS
from hpcfed.storage.digest import digest
from tests.mpirun import mpirun

HERE, ROUNDS, DIGEST = Path(__file__).parent, 3, "digest.txt"
LIMIT = 300  # seconds
JOBS = {  # one of rounds, with memories and a client that keeps nothing yet; one in virtual time
    "rounds": ("--algorithm.name", "fedproto", "--local.keep_optimiser", "--participation", "0.34"),
    "events": ("--algorithm.name", "fedasync"),
}
TINY = (
    "--clients",
    "5",
    "--models.mix",
    "fedhenn-1",
    "--models.d",
    "8",
    "--data.train_limit",
    "40",
    "--rounds",
    str(ROUNDS),
    "--checkpoint.keep",
    "1",
    "--run.rebalance",
    "0",
    "--quiet",
    "--out",
    "run",
)


def main() -> None:
    versions = (VERSIONS[form] for form in (names.CHECKPOINT, names.RESULTS))
    checkpoint, results = (v if isinstance(v, int) else v[0] for v in versions)
    folder = HERE / f"checkpoint-{checkpoint}-results-{results}"
    for name, flags in JOBS.items():
        make(folder / name, flags)


def make(to: Path, flags: tuple[str, ...]) -> None:
    """One run, on two ranks, without what is not read again."""
    with TemporaryDirectory() as place:
        mpirun(2, "-m", "hpcfed.main", *TINY, *flags, cwd=place, timeout=LIMIT)
        made = Path(place) / "run"
        to.mkdir(parents=True)
        shutil.copy(names.results_file(made), to)
        shutil.copytree(names.checkpoint_folder(made), names.checkpoint_folder(to))
        (to / DIGEST).write_text(digest(made) + "\n")


if __name__ == "__main__":
    main()
