"""The MPI library's description of itself. MPI is loaded for this, but not started."""

import ctypes
import re
from pathlib import Path
from typing import Any

MAPS = Path("/proc/self/maps")


def library() -> dict[str, Any]:
    """Return the library's name, version, MPI standard and file, and mpi4py's version.

    cuda: whether it takes buffers in a GPU's memory; None if it does not say.
    Raises ImportError, RuntimeError or OSError if mpi4py or an MPI library for it is missing.
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
    """Return the file of a shared library that this process has loaded.

    Returns "" if there is none, or if the system has no /proc.
    """
    try:
        # five columns, and the path, which may hold spaces
        line = rf"^(?:\S+ +){{5}}(/(?:.*/)?{stem}[^/\n]*\.so[^/\n]*)$"
        paths = re.findall(line, MAPS.read_text(), re.MULTILINE)
    except OSError:
        return ""
    return paths[0] if paths else ""


def takes_gpu(path: str) -> bool | None:
    """Return whether Open MPI takes buffers in a GPU's memory, by its own extension.

    Returns None for other libraries, which do not have the extension.
    """
    try:
        return bool(ctypes.CDLL(path).MPIX_Query_cuda_support()) if path else None
    except (OSError, AttributeError):
        return None
