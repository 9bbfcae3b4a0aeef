"""Choice of the command that starts the ranks inside an allocation."""

import shlex
import shutil
import sys

from hpcfed.launch.doctor.launchers import PLUGINS, list_srun_plugins, starters
from hpcfed.launch.doctor.timeout import split

AUTO = "auto"
# options of srun about what a dead rank means for the others, which otherwise wait for it
ENDS_WITH_RANK = ("--kill-on-bad-exit", "-K")


def launcher(wanted: str = AUTO) -> tuple[str, ...]:
    """Return the words before the ranks' command; `srun` gets the options that it needs.

    wanted: the command, or "auto" for the one that most likely works.
    Raises ConfigError for words that no shell could split.
    """
    words = split("launcher", likely() if wanted == AUTO else wanted)
    if words == ["srun"]:
        words += [f"--mpi={interface()}"]
    if words[0] == "srun" and not any(word.startswith(ENDS_WITH_RANK) for word in words):
        words += ["--kill-on-bad-exit=1"]
    return tuple(words)


def likely() -> str:
    """Return the launcher that most likely works: mpirun, else srun.

    mpirun belongs to its MPI library, also beside this Python, and asks Slurm for the nodes.
    """
    commands = [shlex.quote(name) for name in starters(sys.executable)]
    return commands[0] if commands else "srun" if shutil.which("srun") else "mpirun"


def interface() -> str:
    """Return the best MPI plugin of this Slurm's srun.

    It is pmix, that of Open MPI, if srun has none of PLUGINS or does not list them.
    """
    here = list_srun_plugins()
    return next((name for name in PLUGINS if name in here), PLUGINS[0])
