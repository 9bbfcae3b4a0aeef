"""Event files for TensorBoard: `tensorboard --logdir runs` shows all runs in a folder."""

from __future__ import annotations

import json

from hpcfed.report.sinks.base import Sink
from hpcfed.storage import names
from hpcfed.storage.record import Header

NAME = "tensorboard"


class TensorBoard(Sink):
    """Sink for TensorBoard; each start of a run writes another file.

    Rounds that it logs again replace those in earlier files.
    """

    package = "tensorboard"

    def begin(self, header: Header, done: int) -> int:
        from torch.utils.tensorboard import SummaryWriter

        complete = min(done, self.read_mark(NAME, done).get("rounds", 0))
        self.writer = SummaryWriter(str(names.sink_folder(self.run, NAME)), purge_step=complete + 1)
        self.writer.add_text("job", f"```\n{json.dumps(header['job'], indent=2)}\n```", complete)
        return complete

    def round(self, t: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, t)
        self.writer.flush()  # so that a kill loses no round that is marked
        self.mark(NAME, rounds=t)

    def end(self, status: str) -> None:
        self.writer.close()
