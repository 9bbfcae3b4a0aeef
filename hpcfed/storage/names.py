"""Where each file of a run lies."""

from pathlib import Path

RESULTS = "hpcfed-results"  # the `format` attribute of a result file
CHECKPOINT = "hpcfed-checkpoint"  # the `format` attribute of a checkpoint


def run_of(path: Path) -> Path:
    """The run folder that a --resume path means: itself, or that of a checkpoint file."""
    return path.parent.parent if path.suffix == ".h5" else path


def job_file(run: Path) -> Path:
    """The job as it was run, in a form that can be run again; the result file holds it too."""
    return run / "job.toml"


def results_file(run: Path) -> Path:
    return run / "results.h5"


def partition_file(run: Path) -> Path:
    """Who holds which examples; another job can load it as data.partition_file."""
    return run / "partition.h5"


def spill_folder(run: Path, rank: int | str) -> Path:
    """What does not fit in a rank's memory, while the run goes on."""
    return run / f"spill-{rank}"


def watch_folder(run: Path) -> Path:
    """Where ranks say that they get on, while the run goes on."""
    return run / "watch"


def watch_file(run: Path, rank: int) -> Path:
    return watch_folder(run) / f"rank-{rank}.json"


def checkpoint_folder(run: Path) -> Path:
    return run / "checkpoints"


def checkpoint_file(run: Path, rounds: int) -> Path:
    """The state of a run of which `rounds` rounds are done."""
    return checkpoint_folder(run) / f"round-{rounds:06d}.h5"
