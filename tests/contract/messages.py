"""Messages between clients and server: transforms that note, change or replace them."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import map_tensors, nbytes, tensors
from hpcfed.federation.federation import Federation
from hpcfed.federation.upload import Transform, Upload
from tests.contract import toy


@dataclass
class Scale(Transform):
    """Multiplies the values of all uploads, and notes them."""

    factor: float
    name: str | None = None  # of the only part that is changed; None: all
    sent: list[tuple[int, str, int]] = field(default_factory=list)  # client, part, bytes

    def upload(self, fed, client, upload: Upload) -> Upload:
        self.sent += [(client.id, name, nbytes(part)) for name, part in upload.parts.items()]
        for name, reference in upload.relative_to.items():
            if reference is not None:
                check_reference(upload.parts[name], reference)
        if self.factor == 1:
            return upload
        return upload.changed({n: self.change(upload.parts[n]) for n in self.names(upload)})

    def names(self, upload: Upload) -> list[str]:
        return [name for name in upload.parts if self.name in (None, name)]

    def change(self, part: Any) -> Any:
        return scaled(part, self.factor)


class Power(Scale):
    """Multiplies by a power of two, which the inverse undoes exactly; not whole numbers."""

    def change(self, part: Any) -> Any:
        integers = {id(v) for _, v in tensors(part) if not v.is_floating_point()}
        return part if integers else scaled(part, self.factor)


def scaled(part: Any, factor: float) -> Any:
    """The part with other values; weights and positions stay, and whole numbers become 0."""
    if isinstance(part, Mean):
        return Mean(tuple(t._replace(value=scaled(t.value, factor)) for t in part.terms))
    return map_tensors(part, lambda v: v * (factor if v.is_floating_point() else 0))


def check_reference(part: Any, reference: Any) -> None:
    """A reference has the names and shapes of the part that is a change of it."""
    values = [t.value for t in part.terms] if isinstance(part, Mean) else [part]
    for value in values:
        assert isinstance(value, Params) and value.keys() <= reference.keys()
        assert all(v.shape == reference[name].shape for name, v in value.items())


@dataclass
class Messages(Transform):
    """Notes what clients send and receive, or replaces it by what they did in another run.

    uploads, downloads: values by client, number of the message, and part.
    replaced: number of values that were others.
    """

    replay_uploads: bool = False
    replay_downloads: bool = False
    uploads: dict[tuple[int, int, str], Any] = field(default_factory=dict)
    downloads: dict[tuple[int, int, str], Any] = field(default_factory=dict)
    replaced: int = 0
    counts: Counter[tuple[str, int, str]] = field(default_factory=Counter)

    def upload(self, fed, client, upload: Upload) -> Upload:
        log, replay = self.uploads, self.replay_uploads
        return upload.changed(
            {n: self._pass("up", client.id, n, v, log, replay) for n, v in upload.parts.items()}
        )

    def download(self, fed, client, value: Any) -> tuple[Any, None]:
        return self._pass("down", client.id, "", value, self.downloads, self.replay_downloads), None

    def _pass(self, way: str, k: int, name: str, value: Any, log: dict, replay: bool) -> Any:
        number = self.counts[way, k, name]
        self.counts[way, k, name] += 1
        if replay:
            other = log[k, number, name]
            self.replaced += bool(toy.differences(plain_value(value), plain_value(other)))
            return deepcopy(other)
        log[k, number, name] = deepcopy(value)
        return value


def plain_value(part: Any) -> Any:
    """The values of a part, without their positions."""
    return [t[:2] for t in part.terms] if isinstance(part, Mean) else part


@dataclass
class Downlink(Transform):
    """Multiplies what clients receive, and notes what they receive and send.

    number: of the only download of each client that is changed, unevenly, from 0; None: none.
    """

    factor: float = 1.0
    number: int | None = None
    sizes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # by client
    telling: dict[int, list[bool]] = field(default_factory=lambda: defaultdict(list))  # has values
    uploads: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))

    def upload(self, fed, client, upload: Upload) -> Upload:
        self.uploads[client.id] += map(deepcopy, upload.parts.values())
        return upload

    def download(self, fed, client, value: Any) -> tuple[Any, None]:
        number = len(self.sizes[client.id])
        self.sizes[client.id].append(nbytes(value))
        self.telling[client.id].append(any(map(has_values, (v for _, v in tensors(value)))))
        value = uneven(value) if number == self.number else value
        return (value if self.factor == 1 else multiplied(value, self.factor)), None


def has_values(tensor: Any) -> bool:
    value = np.asarray(tensor)
    return value.dtype.kind == "f" and bool((np.isfinite(value) & (value != 0)).any())


def uneven(value: Any) -> Any:
    """The value four times as large, its even entries with the other sign."""

    def change(v: torch.Tensor) -> torch.Tensor:
        factors = torch.where(torch.arange(v.numel(), device=v.device) % 2 == 0, -4.0, 4.0)
        return v * factors.view(v.shape).to(v.dtype) if v.is_floating_point() else v

    return map_tensors(value, change)


def multiplied(value: Any, factor: float) -> Any:
    return map_tensors(value, lambda v: v * factor if v.is_floating_point() else v)


def round_trip() -> list[Transform]:
    """A change of all messages, and its inverse."""
    return [Power(2.0), Power(0.5), Downlink(2.0), Downlink(0.5)]


@dataclass
class Noted:
    """Rounds whose messages are noted and not changed."""

    outcomes: list[toy.Outcome] = field(default_factory=list)  # of one row each
    scale: Scale = field(default_factory=lambda: Scale(1.0))
    downlink: Downlink = field(default_factory=Downlink)
    messages: Messages = field(default_factory=Messages)
    round_1_uploads: dict[tuple[int, int, str], Any] = field(default_factory=dict)
    # what turns made: the parts of uploads, and the bytes of each to all its receivers
    parts: Counter[str] = field(default_factory=Counter)
    sizes: list[int] = field(default_factory=list)

    @contextmanager
    def noting(self, fed: Federation) -> Iterator[None]:
        """Inside, the messages of these clients are noted."""
        init = Upload.__init__

        def note(upload: Upload, *args: Any, **named: Any) -> None:
            init(upload, *args, **named)
            self.parts.update([*upload.parts])
            self.sizes.append(upload.receivers * sum(map(nbytes, upload.parts.values())))

        with pytest.MonkeyPatch.context() as patch:
            noting = [self.scale, self.downlink, self.messages]
            patch.setattr(fed, "transforms", [*fed.transforms, *noting])
            patch.setattr(Upload, "__init__", note)
            yield

    def add(self, outcome: toy.Outcome) -> None:
        """Add what the run has computed after its next round."""
        if not self.outcomes:
            self.round_1_uploads = dict(self.messages.uploads)
        self.outcomes.append(outcome)

    def bytes(self, column: str) -> np.ndarray:
        """The bytes of each client in all rounds, [K], by the run's record."""
        return sum(outcome.column(column).sum(0) for outcome in self.outcomes)
