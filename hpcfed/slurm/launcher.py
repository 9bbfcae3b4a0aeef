"""What starts the ranks inside an allocation."""

import shutil
import subprocess

from hpcfed.errors import ConfigError

NAMES = ("auto", "mpirun", "srun")


def launcher(wanted: str = "auto") -> tuple[str, ...]:
    """The words before the ranks' command.

    auto: mpirun where there is one, for it belongs to its MPI library and asks Slurm for the nodes; srun else.
    """
    if wanted not in NAMES:
        raise ConfigError(f"submit: --launcher {wanted}: one of {', '.join(NAMES)}")
    if wanted == "mpirun" or (wanted == "auto" and (shutil.which("mpirun") or not shutil.which("srun"))):
        return ("mpirun",)
    return "srun", f"--mpi={interface()}", "--kill-on-bad-exit=1"


def interface() -> str:
    """How this Slurm's srun and an MPI library find each other: pmix where Slurm has it, else pmi2."""
    if not shutil.which("srun"):
        return "pmix"
    known = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=60)
    return "pmix" if "pmix" in (known.stdout + known.stderr).split() else "pmi2"
