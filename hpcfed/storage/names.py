"""Paths of a run's files."""

import os
from pathlib import Path

RESULTS = "hpcfed-results"  # the `format` attribute of a result file
CHECKPOINT = "hpcfed-checkpoint"  # the `format` attribute of a checkpoint
PART = "hpcfed-checkpoint-part"  # and of one rank's part of it
PARTITION = "hpcfed-partition"  # and of a partition
PROBE = "hpcfed-probe"  # and of a probe


def run_of(path: Path) -> Path:
    """Return the run folder of a --resume path, which is the folder itself or an index in it."""
    return path.parent.parent if path.suffix == ".h5" else path


def folder_of(run: Path) -> Path:
    """Return the folder of a run, which may be given by its result file."""
    return run.parent if os.path.isfile(run) else run


def results_of(run: Path) -> Path:
    """Return the result file of a run, which may be given by its folder."""
    return results_file(run) if os.path.isdir(run) else run


def place_of(results: Path) -> Path:
    """Return the path that names the run with these results.

    It is the run's folder, or the file itself without suffix if its name is not the usual one.
    """
    real = Path(os.path.realpath(results))
    if real.name == results_file(real).name:
        return real.parent
    return real.with_suffix("") if real.suffix == ".h5" else real


def is_missing(path: Path) -> bool:
    """Return whether there is certainly no such file: one that cannot be read counts as there."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, running or not."""
    files = (results_file(folder), lock_file(folder))
    return any(map(os.path.exists, (*files, checkpoint_folder(folder), watch_folder(folder))))


def results_file(run: Path) -> Path:
    return run / "results.h5"


def results_copy(parts: Path) -> Path:
    """Return the path of a copy of the results, made with a checkpoint, beside its parts."""
    return parts / "results.h5"


def partition_file(run: Path) -> Path:
    """Return the path of the partition, which another job can load as data.partition_file."""
    return run / "partition.h5"


def lock_file(run: Path) -> Path:
    """Return the path of the lock file, which exists during the run (`storage.lock`)."""
    return run / "run.lock"


def spill_folder(run: Path, rank: int | str) -> Path:
    """Return the folder of values that do not fit in a rank's memory, during the run."""
    return run / f"spill-{rank}"


def watch_folder(run: Path) -> Path:
    """Return the folder of the ranks' heartbeat files, during the run."""
    return run / "watch"


def watch_file(run: Path, rank: int) -> Path:
    return watch_folder(run) / f"rank-{rank}.json"


def sink_folder(run: Path, sink: str) -> Path:
    """Return the folder of a log in another program's format (`hpcfed.report.sinks`).

    It has the name of its field in the job.
    """
    return run / sink


def sink_file(run: Path, sink: str) -> Path:
    """Return the path of the state that such a log needs to continue."""
    return run / f"{sink}.json"


def checkpoint_folder(run: Path) -> Path:
    return run / "checkpoints"


def checkpoint_file(run: Path, rounds: int) -> Path:
    """Return the path of a checkpoint's index, after `rounds` rounds."""
    return checkpoint_folder(run) / f"round-{rounds:06d}.h5"


def final_file(run: Path, rounds: int) -> Path:
    """Return the path of the index of the models after the final step that followed `rounds`."""
    return checkpoint_folder(run) / f"final-{rounds:06d}.h5"


def parts_folder(index: Path, number: int = 0) -> Path:
    """Return the folder of the parts of the checkpoint with this index.

    number: from 1 if the same round is saved again, so that the parts that the index names are not
    overwritten.
    """
    return index.with_name(f"{index.stem}-{number}" if number else index.stem)


def index_of(parts: Path) -> Path:
    """Return the index of the parts in this folder."""
    return parts.with_name("-".join(parts.name.split("-")[:2]) + ".h5")


def part_file(parts: Path, rank: int) -> Path:
    """Return the path of one rank's part of a checkpoint."""
    return parts / f"rank-{rank:04d}.h5"


def part_note(parts: Path, rank: int) -> Path:
    """Return the path of the note that one rank's part is written, until there is an index."""
    return parts / f"rank-{rank:04d}.json"


def models_folder(run: Path) -> Path:
    """Return the default folder of the clients' exported models."""
    return run / "models"


def adapted_folder(run: Path) -> Path:
    """Return the folder of the models that clients adapted after the last round."""
    return run / "adapted"


def model_file(folder: Path, k: int) -> Path:
    """Return the path of client k's trained model."""
    return folder / f"client-{k:04d}.safetensors"


def probe_file(run: Path) -> Path:
    """Return the path of the probe: predictions of the trained models (`storage.probe`)."""
    return run / "probe.h5"


def sweep_file(sweep: Path) -> Path:
    """Return the path of a sweep's definition; the folders of its runs are beside it."""
    return sweep / "sweep.json"


def picture_file(run: Path) -> Path:
    """Return the path of the learning curves that are drawn at the end of the run."""
    return run / "curves.png"


def rank_log_folder(run: Path) -> Path:
    return run / "ranks"


def rank_log(run: Path, rank: int) -> Path:
    """Return the path of a rank's log."""
    return rank_log_folder(run) / f"rank-{rank}.log"


def log_file(sweep: Path, run: str) -> Path:
    """Return the path of the output of a run of a sweep, locked by the process that runs it."""
    return sweep / "logs" / f"{run}.txt"


def end_file(sweep: Path, run: str) -> Path:
    """Return the path of the record of how a run of a sweep last ended."""
    return sweep / "logs" / f"{run}.json"
