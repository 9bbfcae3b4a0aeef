"""What starts the ranks inside an allocation."""

import shlex
import shutil
import subprocess

AUTO = "auto"


def launcher(wanted: str = AUTO) -> tuple[str, ...]:
    """The words before the ranks' command: those that are wanted, `srun` with the --mpi that it needs.

    auto: mpirun where there is one, for it belongs to its MPI library and asks Slurm for the nodes; srun else.
    """
    if wanted == AUTO:
        wanted = "mpirun" if shutil.which("mpirun") or not shutil.which("srun") else "srun"
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
