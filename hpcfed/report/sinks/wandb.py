"""A run in Weights & Biases.

It is offline, in the run's folder (`wandb sync --append RUN/wandb/offline-run-*` uploads it),
unless WANDB_MODE says otherwise; project etc. are set by wandb's own variables. Console output,
code and machine statistics are not logged.
"""

from __future__ import annotations

import os

from hpcfed.report.sinks.base import Sink
from hpcfed.storage.record import Header

NAME = "wandb"
QUIET = {
    "console": "off",
    "silent": True,
    "disable_git": True,
    "disable_code": True,
    "x_disable_stats": True,
}


class WandB(Sink):
    """Sink for Weights & Biases; a resumed run continues under the same id.

    An offline log that was not closed, because its processes were killed, may lack rounds that
    wandb had not written yet. In that case the run has a new log of all its rounds, under an id of
    its own.
    """

    package = "wandb"

    def begin(self, header: Header, done: int) -> int:
        import wandb

        mode, mark = os.environ.get("WANDB_MODE", "offline"), self.read_mark(NAME, done)
        mark = mark if mark.get("closed") or mode == "online" else {}
        self.log = wandb.init(
            dir=str(self.run),
            mode=mode,
            config=header["job"],
            name=self.run.resolve().name,
            project=os.environ.get("WANDB_PROJECT", "hpcfed"),
            id=mark.get("id"),
            resume="allow" if mark else None,
            settings=wandb.Settings(**QUIET),
        )
        self.logged = mark.get("rounds", 0)
        self.note(closed=False)
        return self.logged

    def round(self, t: int, numbers: dict[str, float]) -> None:
        self.log.log(numbers, step=t)
        self.logged = t
        self.note(closed=False)

    def end(self, status: str) -> None:
        self.log.finish(exit_code=0 if status == "finished" else 1)
        self.note(closed=True)

    def note(self, closed: bool) -> None:
        self.mark(NAME, id=self.log.id, rounds=self.logged, closed=closed)
