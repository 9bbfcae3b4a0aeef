"""What starts the ranks inside an allocation."""

import shlex
import shutil
import sys

from hpcfed.launch.doctor.launcher_cache import read_launcher
from hpcfed.launch.doctor.launchers import PLUGINS, list_srun_plugins, starters
from hpcfed.launch.doctor.timeout import split

AUTO = "auto"


def launcher(wanted: str = AUTO) -> tuple[str, ...]:
    """The words before the ranks' command: those that are wanted, `srun` with the options that it
    needs.

    auto: what `hpcfed doctor` has found to work on this cluster; a guess where nobody has asked it.
    ConfigError for words that no shell could split.
    """
    words = split("launcher", (read_launcher() or likely()) if wanted == AUTO else wanted)
    if words == ["srun"]:
        words += [f"--mpi={interface()}"]
    if words[0] == "srun" and wanted in (AUTO, "srun"):
        words += ["--kill-on-bad-exit=1"]
    return tuple(words)


def likely() -> str:
    """mpirun, also beside this Python, for it belongs to its MPI library and asks Slurm for the
    nodes; srun else.
    """
    found = [shlex.quote(name) for name in starters(sys.executable)]
    return found[0] if found else "srun" if shutil.which("srun") else "mpirun"


def interface() -> str:
    """How srun and an MPI library find each other: the best that this Slurm has; pmix, Open MPI's,
    is not known.
    """
    here = list_srun_plugins()
    return next((name for name in PLUGINS if name in here), PLUGINS[0])
