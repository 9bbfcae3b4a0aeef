"""Removal of shared memory that killed processes of this user left behind on this machine.

Segments of Open MPI and of hpcfed have names, and stay in memory until they are removed. One is
removed only if it is provably unused: by its name it was made here by this user, who owns it; no
visible process maps it; the process that its name gives, if any, has ended; and it is not so new
that it may be about to be used.
"""

import os
import re
import socket
import stat
from contextlib import suppress
from pathlib import Path
from time import time

from hpcfed.comm.shared_memory import FOLDERS, PREFIX

YOUNG = 60.0  # seconds
PROCESSES = Path("/proc")


def remove(folder: Path = Path(FOLDERS[0])) -> list[Path]:
    """Remove unused segments, and return their paths."""
    removed = []
    unused = [path for path in candidates(folder) if not in_use(path)]
    for path in set(unused) - files_in_use(unused):
        with suppress(OSError):
            path.unlink()
            removed.append(path)
    return sorted(removed)


def candidates(folder: Path) -> list[Path]:
    """Return this user's files with such names that are older than YOUNG seconds."""
    host, uid = re.escape(socket.gethostname()), os.getuid()
    ours = re.compile(rf"sm_segment\.{host}\.{uid}\.[0-9a-f]+\.\d+|{PREFIX}\d+-\w+")
    paths = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            if ours.fullmatch(entry.name):
                about = entry.stat(follow_symlinks=False)
                old = time() - about.st_mtime > YOUNG
                if stat.S_ISREG(about.st_mode) and about.st_uid == uid and old:
                    paths.append(Path(entry.path))
    return paths


def in_use(path: Path) -> bool:
    """Return whether the process that the file's name gives still runs."""
    made_by = re.match(rf"{PREFIX}(\d+)-", path.name)
    return made_by is not None and (PROCESSES / made_by[1]).exists()


def files_in_use(paths: list[Path]) -> set[Path]:
    """Return those of these files that a process maps, or may map.

    Returns all of them if a process of this user cannot be inspected.
    """
    mapped: set[Path] = set()
    for entry in PROCESSES.glob("[0-9]*") if paths else ():
        try:
            # the init process does not compute
            if entry.name == "1" or entry.stat().st_uid != os.getuid():
                continue
            text = (entry / "maps").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        except OSError:
            return set(paths)
        mapped |= {path for path in paths if str(path) in text}
    return mapped
