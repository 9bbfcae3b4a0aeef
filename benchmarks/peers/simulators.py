"""The peers: how each is installed and started."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from launch import run_within

HERE = Path(__file__).resolve().parent
FLUTE = "https://github.com/microsoft/msrflute"
FLUTE_COMMIT = "8bfe085"


@dataclass(frozen=True)
class Peer:
    """One simulator.

    script: NAME_run.py, or raw.py.  launcher: plain (it starts its processes itself), torchrun or
    mpirun.
    processes: for how many it can be measured.  server: it has one process more, for its server,
    where there are several.  engine: ours only.  own: it runs in our environment.
    """

    name: str
    script: str
    launcher: str = "plain"
    processes: tuple[int, ...] = (1, 2)
    server: bool = False
    engine: str = ""
    own: bool = False

    @property
    def place(self) -> str:
        """Name of its environment and of its requirements file."""
        return self.script.removesuffix("_run.py")

    def started(self, processes: int) -> int:
        return processes + (self.server and processes > 1)


PEERS = (
    Peer("pfl-research", "pfl_run.py", "torchrun"),
    Peer("Flower (Ray)", "flower_run.py"),
    Peer("FedLab", "fedlab_run.py"),
    Peer("BlazeFL (threads)", "blazefl_run.py"),
    Peer("fluke", "fluke_run.py", processes=(1,)),
    Peer("FedML (MPI)", "fedml_run.py", "mpirun", processes=(2,), server=True),
    Peer("FLUTE (gloo)", "flute_run.py", "torchrun", server=True),
)
RAW = Peer("raw loop", "raw.py", "torchrun", own=True)


def ours(engine: str) -> Peer:
    """hpcfed with training.engine = engine; "default": as the job's default is."""
    name = "hpcfed" if engine == "default" else f"hpcfed ({engine})"
    return Peer(
        name, "hpcfed_run.py", "mpirun", engine="" if engine == "default" else engine, own=True
    )


def command(peer: Peer, python: Path, processes: int) -> list[str]:
    """The words that start a peer's script."""
    n, script = str(peer.started(processes)), str(HERE / peer.script)
    if peer.launcher == "mpirun":
        return [*launcher(python, peer.started(processes)), script]
    if peer.launcher == "torchrun" and (n != "1" or peer.server):
        return [
            str(python),
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            n,
            script,
        ]
    return [str(python), script]


def launcher(python: Path, ranks: int) -> list[str]:
    """The words that start Python as this number of ranks: by the Open MPI that is installed beside
    it, or the machine's.
    """
    beside = python.parent / "mpirun"
    return [str(beside) if beside.exists() else "mpirun", "-np", str(ranks), str(python)]


def installed(peer: Peer, cache: Path) -> Path:
    """The Python of a peer's environment, which is made where it is missing or its requirements
    have changed.
    """
    if peer.own:
        return Path(sys.executable)
    folder, python = cache / peer.place, cache / peer.place / "bin/python"
    files = [HERE / "requirements" / f"{peer.place}{part}.txt" for part in ("", "-alone")]
    wanted = "".join(file.read_text() for file in files if file.exists())
    stamp = folder / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "-r", str(files[0])], check=True)
        if files[1].exists():  # says it needs a newer Python, or what it does not use
            subprocess.run(
                [*pip, "--no-deps", "--ignore-requires-python", "-r", str(files[1])], check=True
            )
        stamp.write_text(wanted)
    return python


def flute_source(cache: Path, origin: str) -> Path:
    """FLUTE's repository, which is no package; origin: its address, or a folder."""
    folder = cache / "flute-src"
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", origin, str(folder)], check=True)
        subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", FLUTE_COMMIT], check=True)
    return folder


def environment(cache: Path) -> dict[str, str]:
    """One thread a process, no telemetry, more MPI processes than cores if need be."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}",
        "FLUTE_SOURCE": str(cache / "flute-src"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }


def output(
    words: list[str], environment: dict[str, str], timeout: int, folder: Path | None = None
) -> str:
    """What a command prints; it and all that it started are ended when it takes too long."""
    status, text = run_within(timeout, words, environment, folder)
    return text if status is not None else f"{text}\ngiven up after {timeout} s"
