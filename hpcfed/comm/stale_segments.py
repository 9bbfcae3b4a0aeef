"""Shared memory that killed processes of this user left behind on this machine.

Open MPI's segments and ours have names, but lie in memory as long as nobody removes them. One is
removed only where it is provably nobody's: its name says that it was made here, by this user, whom
it belongs to; no process that can be seen has it in memory; the process that its name gives, if
any, has ended; and it is not so new that it may just be about to be used.
"""

import os
import re
import socket
import stat
from contextlib import suppress
from pathlib import Path
from time import time

from hpcfed.comm.memory import FOLDERS, PREFIX

YOUNG = 60.0  # seconds
PROCESSES = Path("/proc")


def remove(folder: Path = Path(FOLDERS[0])) -> list[Path]:
    """Remove them; those that were removed."""
    removed = []
    found = [path for path in candidates(folder) if not in_use(path)]
    for path in set(found) - files_in_use(found):
        with suppress(OSError):
            path.unlink()
            removed.append(path)
    return sorted(removed)


def candidates(folder: Path) -> list[Path]:
    """Files of this user with such names that are not new."""
    host, uid = re.escape(socket.gethostname()), os.getuid()
    ours = re.compile(rf"sm_segment\.{host}\.{uid}\.[0-9a-f]+\.\d+|{PREFIX}\d+-\w+")
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            if ours.fullmatch(entry.name):
                about = entry.stat(follow_symlinks=False)
                old = time() - about.st_mtime > YOUNG
                if stat.S_ISREG(about.st_mode) and about.st_uid == uid and old:
                    found.append(Path(entry.path))
    return found


def in_use(path: Path) -> bool:
    """Whether the process that the name gives is there."""
    made_by = re.match(rf"{PREFIX}(\d+)-", path.name)
    return made_by is not None and (PROCESSES / made_by[1]).exists()


def files_in_use(paths: list[Path]) -> set[Path]:
    """Those of these files that a process has in memory, or that may be: all where processes of
    this user cannot be looked at.
    """
    held: set[Path] = set()
    for entry in PROCESSES.glob("[0-9]*") if paths else ():
        try:
            # the first process starts all others, and computes nothing itself
            if entry.name == "1" or entry.stat().st_uid != os.getuid():
                continue
            text = (entry / "maps").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
        except OSError:
            return set(paths)
        held |= {path for path in paths if str(path) in text}
    return held
