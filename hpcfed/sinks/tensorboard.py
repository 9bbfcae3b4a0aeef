"""Event files for TensorBoard: `tensorboard --logdir runs` shows all runs below that folder."""

from __future__ import annotations

import json

from hpcfed.sinks.base import Sink
from hpcfed.storage import names
from hpcfed.storage.record import Header


class TensorBoard(Sink):
    """Each start of a run is a file more; the rounds that it repeats replace those of the files before."""

    package = "tensorboard"

    def begin(self, header: Header, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(names.sink_folder(self.run, "tensorboard")), purge_step=done + 1)
        self.writer.add_text("job", f"```\n{json.dumps(header['job'], indent=2)}\n```", done)
        self.writer.flush()

    def round(self, t: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, t)
        self.writer.flush()  # so that a kill loses no round that is not repeated

    def end(self, status: str) -> None:
        self.writer.close()
