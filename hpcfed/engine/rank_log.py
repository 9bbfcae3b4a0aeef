"""Logs of ranks: what each rank did in each round, and the error that ended it."""

from __future__ import annotations

import os
import platform
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hpcfed.core.errors import HpcfedError
from hpcfed.core.tables import size
from hpcfed.core.version import __version__
from hpcfed.core.wording import count_noun
from hpcfed.engine.round_record import peak_bytes
from hpcfed.storage import names

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


class RankLog:
    """The log of this rank, in RUN/ranks/rank-R.log, with a line per round; a resumed run appends.

    A disk that refuses it does not end the run.
    """

    def __init__(self, fed: Federation, folder: Path):
        self.fed, self.path = fed, names.rank_log(folder, fed.comm.rank)
        self.active = fed.job.log.ranks

    def __enter__(self) -> Self:
        comm, mine = self.fed.comm, self.fed.placement.ranks.count(self.fed.comm.rank)
        self.say(
            f"rank {comm.rank} of {comm.size}, process {os.getpid()} on {platform.node()}, "
            f"{self.fed.device}, hpcfed {__version__}: {count_noun(mine, 'client')}"
        )
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.say("ended in order")
        elif isinstance(error, HpcfedError):
            self.say(f"ended by an error: {error}")
        else:
            self.say("ended by an error:\n" + "".join(traceback.format_exception(error)).rstrip())

    def round(self, t: int) -> None:
        """Log round t, counted from 1."""
        clock = self.fed.clock
        spent = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in clock.last.items())
        clients = count_noun(clock.heartbeat.done, "client")
        self.say(f"round {t}: {clients}; {spent or 'idle'}; peak memory {size(peak_bytes())}")

    def say(self, text: str) -> None:
        """Append a line with the time."""
        if not self.active:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except OSError as error:
            self.active = False
            self.fed.warnings.say(
                f"{self.path}: cannot be written: {error.strerror}; the run continues "
                "without this rank's log"
            )
