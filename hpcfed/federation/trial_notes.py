"""What a federation notes while it runs as a trial (`hpcfed.algorithms.trial`)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcfed.core.params import Mean
from hpcfed.core.payload import map_tensors, nbytes
from hpcfed.federation.transforms.values import values_of
from hpcfed.federation.upload import Uplink

if TYPE_CHECKING:
    from torch import Tensor

    from hpcfed.clients.client import Client
    from hpcfed.config.sections import Local
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.upload import Upload


class Shortened(int):
    """One pass of a loop in a trial, which remembers how many passes the job has.

    passes: of the job.
    """

    passes: int

    def __new__(cls, passes: int) -> Shortened:
        one = super().__new__(cls, 1)
        one.passes = passes
        return one


def of_job(passes: int) -> int:
    """Return the number of passes that the job has in the place of those of a trial."""
    return passes.passes if isinstance(passes, Shortened) else passes


class Training(NamedTuple):
    """A training with noisy gradients, of a client with any number of examples.

    size: expected examples of a batch; 0: all of the client's, in one gradient.
    epochs: passes.  steps: gradients, instead of passes, unless 0.
    others: examples beside the client's own.
    """

    size: int
    epochs: int = 1
    steps: int = 0
    others: int = 0

    def releases(self, n: int) -> tuple[float, int]:
        """Return the probability of an example in a batch, and the number of noisy gradients.

        n: the client's examples.
        """
        if not self.size:
            return 1.0, 1
        n = max(1, n + self.others)
        return min(self.size, n) / n, self.steps or self.epochs * math.ceil(n / self.size)


@dataclass
class UploadedParts:
    """Names of the parts of uploads, by what the server does with them.

    means: parts for a mean.
    single: parts that are moved between ranks one by one, because the server needs single values.
    It notices the tensors that clients sent, in any container, but no values computed from them.
    """

    means: set[str] = field(default_factory=set)
    single: set[str] = field(default_factory=set)
    _names: dict[int, tuple[str, Tensor]] = field(default_factory=dict)  # of the round, by address

    def begin(self) -> None:
        """Begin a round."""
        self._names.clear()

    def add(self, upload: Upload) -> None:
        """Note the parts of an upload."""
        for name, part in upload.parts.items():
            if isinstance(part, Mean):
                self.means.add(name)
            for value in values_of(part):
                # with the tensor, so that no other one gets its address
                self._names[value.tensor.data_ptr()] = name, value.tensor

    def move(self, values: Any) -> None:
        """Note which parts are among values that are moved."""
        map_tensors(values, self._move)

    def _move(self, tensor: Tensor) -> Tensor:
        if tensor.numel() and tensor.data_ptr() in self._names:
            self.single.add(self._names[tensor.data_ptr()][0])
        return tensor


class TrialUplink(Uplink):
    """Notes the parts of uploads, and the bytes that they take in memory."""

    def __init__(self, fed: Federation, uploaded: UploadedParts) -> None:
        super().__init__(fed)
        self._uploaded = uploaded

    def send(self, client: Client, upload: Any) -> Upload | None:
        sent = super().send(client, upload)
        if sent is not None and self._fed.trial:
            self._fed.trial.upload_memory[client.id] += nbytes(dict(sent.parts))
        return sent

    def received(self, k: int, upload: Upload) -> Any:
        self._uploaded.add(upload)
        return super().received(k, upload)


@dataclass
class Trial:
    """Notes of a trial.

    local: local training of the job, whose loops the trial shortens.
    uploaded: parts of uploads.
    trainings: those of the round with noisy gradients, by client.
    streams: phase, round and client of their noise.
    upload_memory: bytes that the uploads of the round take in memory, decoded, by client.
    """

    local: Local
    uploaded: UploadedParts = field(default_factory=UploadedParts)
    trainings: defaultdict[int, Counter[Training]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    streams: set[tuple[str, int, int]] = field(default_factory=set)
    upload_memory: Counter[int] = field(default_factory=Counter)

    def begin(self) -> None:
        """Begin a round."""
        self.uploaded.begin()
        self.trainings.clear()
        self.streams.clear()
        self.upload_memory.clear()

    def note(self, k: int, training: Training) -> None:
        """Note a training of client k."""
        self.trainings[k][training] += 1
