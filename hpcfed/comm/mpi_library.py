"""What the MPI library says about itself; MPI is loaded for that, but not started."""

import ctypes
import re
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")


def library() -> dict[str, Any]:
    """Name and version of the library, the MPI standard that it implements, mpi4py's version, and
    its file.

    cuda: whether it takes buffers in a GPU's memory; None where it does not say.
    Raises ImportError, RuntimeError or OSError where there is no mpi4py, or no library for it.
    """
    import mpi4py

    mpi4py.rc.initialize = False  # without effect where MPI runs already
    from mpi4py import MPI

    name = re.split(r"[,\n]", MPI.Get_library_version().strip("\0"))[0].strip()
    standard = ".".join(map(str, MPI.Get_version()))
    path = library_path("libmpi")
    return {
        "name": name,
        "standard": standard,
        "mpi4py": mpi4py.__version__,
        "file": path,
        "cuda": takes_gpu(path),
    }


def library_path(stem: str) -> str:
    """The file of a shared library that this process has loaded.

    "" if there is none, or no /proc.
    """
    try:
        # five columns, and the path, which may hold spaces
        line = rf"^(?:\S+ +){{5}}(/(?:.*/)?{stem}[^/\n]*\.so[^/\n]*)$"
        paths = re.findall(line, MAPS.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return paths[0] if paths else ""


def takes_gpu(path: str) -> bool | None:
    """What Open MPI's extension says of buffers in a GPU's memory.

    Other libraries do not have it.
    """
    try:
        return bool(ctypes.CDLL(path).MPIX_Query_cuda_support()) if path else None
    except (OSError, AttributeError):
        return None
