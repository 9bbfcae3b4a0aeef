"""What starts the ranks inside an allocation."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

AUTO = "auto"


def launcher(wanted: str = AUTO) -> tuple[str, ...]:
    """The words before the ranks' command: those that are wanted, `srun` with the --mpi that it needs.

    auto: mpirun where there is one, also beside this Python, for it belongs to its MPI library and asks Slurm for the
    nodes; srun else. `hpcfed doctor` tries which of them work.
    """
    if wanted == AUTO:
        own = shutil.which("mpirun", path=str(Path(sys.executable).parent))  # of a virtual environment
        here = "mpirun" if shutil.which("mpirun") else own and shlex.quote(own)
        wanted = here or ("srun" if shutil.which("srun") else "mpirun")
    words = shlex.split(wanted)
    if words == ["srun"]:
        words += [f"--mpi={interface()}", "--kill-on-bad-exit=1"]
    return tuple(words)


def interface() -> str:
    """How srun and an MPI library find each other: pmix, Open MPI's, where this Slurm has it; else pmi2, MPICH's."""
    if not shutil.which("srun"):
        return "pmix"
    known = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=60)
    return "pmix" if "pmix" in (known.stdout + known.stderr).split() else "pmi2"
