"""The pictures of the documentation: runs of committed jobs on Fashion-MNIST, and every figure that
they give.

    python docs/gallery.py [--data.root FOLDER]    # about 10 minutes on two cores; what is finished
    is not run again

Runs lie in runs/gallery, pictures in docs/pages/gallery.
"""

import subprocess
import sys
from pathlib import Path

from hpcfed.report.figures.command import plot
from hpcfed.report.figures.registry import FIGURES

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from benchmarks.pictures import reduce_colours  # noqa: E402

RUNS, PICTURES = ROOT / "runs" / "gallery", ROOT / "docs" / "pages" / "gallery"
SMALL = [
    "--data.name",
    "fashion-mnist",
    "--data.train_limit",
    "4000",
    "--clients",
    "20",
    "--rounds",
    "20",
]
JOBS = {  # folder: its job
    "local": ["jobs/local-fashion-mnist-dirichlet.toml", "jobs/small.toml"],
    "fedclassavg": [
        "jobs/fedclassavg-fashion-mnist-dirichlet.toml",
        "jobs/small.toml",
        "--checkpoint.every",
        "13",
        "--checkpoint.keep",
        "4",
        "--evaluate.metrics",
        "ece",
    ],
    "fedasync": ["jobs/methods/fedasync.toml", *SMALL],
    "swift": [
        "jobs/methods/swift.toml",
        *SMALL,
        "--models.mix",
        "cnn",
        "--algorithm.merges",
        "200",
    ],
}
FIRST, BOTH, TWO_CLOCKS = ["fedclassavg"], ["local", "fedclassavg"], ["fedclassavg", "fedasync"]
DRAWN = {
    "curves": BOTH,
    "learning": BOTH,
    "accuracies": BOTH,
    "tsne": BOTH,
    "bytes": TWO_CLOCKS,
    "time": TWO_CLOCKS,
    "staleness": ["fedasync"],
    "topology": ["swift"],
}
# of FedHeNN's longer runs; of several data sets; of runs on several numbers of ranks
ELSEWHERE = {"halved", "ranks", "scaling"}


def main() -> None:
    for name, job in JOBS.items():
        if not (RUNS / name / "results.h5").exists():
            run = ["mpirun", "-np", "2", sys.executable, "-m", "hpcfed.main", *job, *sys.argv[1:]]
            subprocess.run([*run, "--out", str(RUNS / name), "--quiet"], cwd=ROOT, check=True)
    PICTURES.mkdir(exist_ok=True)
    for figure in FIGURES.keys() - ELSEWHERE:
        picture = PICTURES / f"{figure}.png"
        print(plot([RUNS / name for name in DRAWN.get(figure, FIRST)], figure, picture))
        reduce_colours(picture)


if __name__ == "__main__":
    main()
