"""Where each file of a run lies."""

import os
import socket
from pathlib import Path

RESULTS = "hpcfed-results"  # the `format` attribute of a result file
CHECKPOINT = "hpcfed-checkpoint"  # the `format` attribute of a checkpoint
PART = "hpcfed-checkpoint-part"  # and of what one rank wrote of it
PARTITION = "hpcfed-partition"  # and of who holds which examples
PROBE = "hpcfed-probe"  # and of what the trained models answered


def run_of(path: Path) -> Path:
    """The run folder that a --resume path means: itself, or that of a checkpoint's index."""
    return path.parent.parent if path.suffix == ".h5" else path


def folder_of(run: Path) -> Path:
    """The folder of a run, which may be given by its results."""
    return run.parent if os.path.isfile(run) else run


def results_of(run: Path) -> Path:
    """The results of a run, which may be given by its folder."""
    return results_file(run) if os.path.isdir(run) else run


def place_of(results: Path) -> Path:
    """What names the run with these results: its folder, or the file where that lies among
    others.
    """
    real = Path(os.path.realpath(results))
    if real.name == results_file(real).name:
        return real.parent
    return real.with_suffix("") if real.suffix == ".h5" else real


def results_file(run: Path) -> Path:
    return run / "results.h5"


def results_copy(parts: Path) -> Path:
    """The results as they were when a checkpoint was made, beside its parts."""
    return parts / "results.h5"


def journal_file(results: Path) -> Path:
    """The last rounds of a run that goes on, until the result file itself is written again."""
    return results.with_name("results.journal")


def partition_file(run: Path) -> Path:
    """Who holds which examples; another job can load it as data.partition_file."""
    return run / "partition.h5"


def lock_file(run: Path) -> Path:
    """Who writes to the run folder, while the run goes on (`storage.lock`)."""
    return run / "run.lock"


def marker_file(run: Path) -> Path:
    """What all nodes look for at the start, to know that they have the same folder."""
    return run / f".{socket.gethostname()}-{os.getpid()}.seen"


def spill_folder(run: Path, rank: int | str) -> Path:
    """What does not fit in a rank's memory, while the run goes on."""
    return run / f"spill-{rank}"


def watch_folder(run: Path) -> Path:
    """Where ranks say that they get on, while the run goes on."""
    return run / "watch"


def watch_file(run: Path, rank: int) -> Path:
    return watch_folder(run) / f"rank-{rank}.json"


def sink_folder(run: Path, sink: str) -> Path:
    """Where a log of another program's kind lies (`hpcfed.report.sinks`), which has the name of its
    field in the job.
    """
    return run / sink


def sink_file(run: Path, sink: str) -> Path:
    """What such a log needs to go on."""
    return run / f"{sink}.json"


def checkpoint_folder(run: Path) -> Path:
    return run / "checkpoints"


def checkpoint_file(run: Path, rounds: int) -> Path:
    """The state of a run of which `rounds` rounds are done: the index of its parts."""
    return checkpoint_folder(run) / f"round-{rounds:06d}.h5"


def parts_folder(index: Path, number: int = 0) -> Path:
    """Where the parts of the checkpoint with this index are.

    number: from 1 where the same round is saved again, so that the parts that the index names stay
    as they are.
    """
    return index.with_name(f"{index.stem}-{number}" if number else index.stem)


def index_of(parts: Path) -> Path:
    """The index of the parts in this folder."""
    return parts.with_name("-".join(parts.name.split("-")[:2]) + ".h5")


def part_file(parts: Path, rank: int) -> Path:
    """What one rank wrote of a checkpoint."""
    return parts / f"rank-{rank:04d}.h5"


def models_folder(run: Path) -> Path:
    """Where the clients' trained models go, unless another folder is named."""
    return run / "models"


def adapted_folder(run: Path) -> Path:
    """Where the models go that clients adapted after the last round."""
    return run / "adapted"


def model_file(folder: Path, k: int) -> Path:
    """The trained model of client k."""
    return folder / f"client-{k:04d}.safetensors"


def probe_file(run: Path) -> Path:
    """What the trained models answer to some test examples."""
    return run / "probe.h5"


def sweep_file(sweep: Path) -> Path:
    """What the runs of a sweep are; their folders are beside it."""
    return sweep / "sweep.json"


def log_file(sweep: Path, run: str) -> Path:
    """All that a run of a sweep has printed; who runs it holds a lock on this file."""
    return sweep / "logs" / f"{run}.txt"


def end_file(sweep: Path, run: str) -> Path:
    """With which status a run of a sweep last ended, and why."""
    return sweep / "logs" / f"{run}.json"
