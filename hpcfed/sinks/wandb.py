"""A run of Weights & Biases.

Offline, in the run's folder (`wandb sync RUN/wandb/offline-run-*` sends it), unless WANDB_MODE says otherwise; project
and the like are as wandb's own variables say. It takes no console output, code or machine statistics.
"""

from __future__ import annotations

import os

from hpcfed.sinks.base import Sink
from hpcfed.storage.record import Header

NAME = "wandb"
QUIET = {"console": "off", "silent": True, "disable_git": True, "disable_code": True, "x_disable_stats": True}


class WandB(Sink):
    """A resumed run goes on under the same id; the rounds that it repeats are not logged again."""

    package = "wandb"

    def begin(self, header: Header, done: int) -> None:
        import wandb

        known = self.marked(NAME, done)
        self.logged = known.get("rounds", 0)
        self.log = wandb.init(
            dir=str(self.run), mode=os.environ.get("WANDB_MODE", "offline"), config=header["job"],
            project=os.environ.get("WANDB_PROJECT", "hpcfed"), name=self.run.resolve().name,
            id=known.get("id"), resume="allow" if known else None, settings=wandb.Settings(**QUIET),
        )  # fmt: skip
        self.mark(NAME, id=self.log.id, rounds=self.logged)

    def round(self, t: int, numbers: dict[str, float]) -> None:
        if t > self.logged:
            self.log.log(numbers, step=t)
            self.logged = t
            self.mark(NAME, id=self.log.id, rounds=t)

    def end(self, status: str) -> None:
        self.log.finish(exit_code=0 if status == "finished" else 1)
