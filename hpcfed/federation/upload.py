"""Upload: what a client sends, and `Uplink`, the one way in which it reaches the server.

A client's turn (`Federation.run`, `Federation.stream`) returns an `Upload`, or None if the client
sends nothing. Inside the turn each part of it passes the transforms of the federation, is examined
for nan, and is counted. What comes through is written into the replay log, and is what the server
has of the client: `run` and `stream` return it, and `mean`, `gather` and the moves between ranks
take it as it is and count nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hpcfed.comm import codec
from hpcfed.core import user_code
from hpcfed.core.errors import DivergedError
from hpcfed.core.payload import map_tensors, nbytes, not_finite

if TYPE_CHECKING:
    import torch

    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation

Part = Any  # of an upload: a Mean, Params, a tensor, or dicts and lists of tensors
ALONE = ""  # name of the part of an upload that has only one


@dataclass(frozen=True, init=False)
class Upload:
    """What one client sends in one message.

    `Upload(Mean.of(params, weight))` for one part, `Upload(model=..., control=...)` for several.

    relative_to: the value of which a part is a new version, so that part - relative_to is the
    update; by default none: the part is an update already, or no update. For several parts, a dict
    by the part's name. Transforms that need it (compression, clipping) get it; it is not sent.
    receivers: number of clients to which the upload goes; each of them gets all bytes.
    """

    parts: Mapping[str, Part]
    relative_to: Mapping[str, Any]
    receivers: int

    def __init__(
        self, part: Part = None, /, *, relative_to: Any = None, receivers: int = 1, **parts: Part
    ) -> None:
        if (part is None) == (not parts):
            raise user_code.OwnError(
                f"{user_code.caller()}Upload takes one part, or several with names, as in "
                f"Upload(Mean.of(...)) and Upload(model=Mean.of(...), control=Mean.of(...))"
            )
        references = {ALONE: relative_to} if part is not None else dict(relative_to or {})
        object.__setattr__(self, "parts", {ALONE: part} if part is not None else parts)
        object.__setattr__(self, "relative_to", references)
        object.__setattr__(self, "receivers", receivers)

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    @property
    def value(self) -> Any:
        """The only part, or all parts by name."""
        return self.parts[ALONE] if ALONE in self.parts else dict(self.parts)

    def replaced(self, parts: Mapping[str, Part]) -> Upload:
        """Return the upload with other values of its parts, and without references."""
        upload = copy(self)
        object.__setattr__(upload, "parts", parts)
        object.__setattr__(upload, "relative_to", {})
        return upload

    def on_device(self, device: torch.device) -> Upload:
        return self.replaced(map_tensors(dict(self.parts), lambda tensor: tensor.to(device)))


class Transform(Protocol):
    """A change of all uploads and downloads: compression, noise, clipping, a mask, an attack.

    client: it may keep state from round to round in `client.memory`.
    name: of the part; "" if the upload has only one.
    """

    def upload(
        self, fed: Federation, client: Client, name: str, part: Part, reference: Any
    ) -> tuple[Part, int | None]:
        """Return what the server receives of a part of a client's upload, and its bytes.

        It is called inside the client's turn.
        reference: `Upload.relative_to` of the part, or None.
        The bytes are None if the part travels as its tensors are.
        """

    def download(self, fed: Federation, client: Client, value: Any) -> tuple[Any, int | None]:
        """Return what the client receives of a value that the server sends, and its bytes.

        It is called inside the client's turn. The bytes are None if the value travels as it is.
        """

    def received(
        self, fed: Federation, name: str, parts: list[tuple[int, Part]]
    ) -> list[tuple[int, Part]]:
        """Return what the server computes with, of a part of this rank's uploads, by client.

        It is called after the turns of `run` or `stream`. Collective: all ranks call it for the
        same names, also those without clients.
        """


class Uplink:
    """The way of uploads from the clients of this rank to the server."""

    def __init__(self, fed: Federation) -> None:
        self._fed = fed

    def send(self, client: Client, upload: Any) -> Upload | None:
        """Return what the server receives of the result of a client's turn.

        Raises DivergedError, which names client and tensor, for a value that is nan or infinite,
        and OwnError for a result that is not an upload.
        """
        if upload is None:
            return None
        if not isinstance(upload, Upload):
            raise user_code.OwnError(
                f"{user_code.caller()}the turn of client {client.id} returns a "
                f"{type(upload).__name__}; return Upload(...), or None if nothing is sent"
            )
        parts, size = {}, 0
        for name, part in upload.parts.items():
            parts[name], bytes_ = self._transformed(client, name, part, upload.relative_to)
            size += bytes_
        self._examine(client, parts)
        self._fed.tallies[client.id].up += upload.receivers * size
        return upload.replaced(parts)

    def _transformed(
        self, client: Client, name: str, part: Part, references: Mapping[str, Any]
    ) -> tuple[Part, int]:
        """Return a part after all transforms, and its bytes."""
        bytes_: int | None = None
        for transform in self._fed.transforms:
            part, size = transform.upload(self._fed, client, name, part, references.get(name))
            bytes_ = bytes_ if size is None else size
        return part, nbytes(part) if bytes_ is None else bytes_

    def _examine(self, client: Client, parts: Mapping[str, Part]) -> None:
        """Raise DivergedError if a value of a client's upload is not finite."""
        fed = self._fed
        if name := not_finite(parts.get(ALONE, parts)):
            error = DivergedError(
                f"{fed.warnings.where(client)}: its {name} is nan or infinite after round "
                f"{fed.tallies.t + 1}; {fed.warnings.last_checkpoint}\n"
                f"  a smaller local.lr may help"
            )
            error.client = client.id
            raise error

    def received(self, uploads: dict[int, Upload]) -> Iterator[tuple[int, Any]]:
        """Iterate over client and what the server has of its upload: its only part, or a dict.

        Collective: the transforms take the uploads of all turns together.
        """
        for name in self._names(uploads):
            pairs = [(k, upload[name]) for k, upload in uploads.items() if name in upload.parts]
            for transform in self._fed.transforms:
                pairs = transform.received(self._fed, name, pairs)
            for k, part in pairs:
                uploads[k] = uploads[k].replaced({**uploads[k].parts, name: part})
        for k, upload in uploads.items():
            yield k, upload.value

    def _names(self, uploads: Mapping[int, Upload]) -> list[str]:
        """Return the names of parts in uploads of all ranks; collective."""
        comm = self._fed.comm
        mine = sorted({name for upload in uploads.values() for name in upload.parts})
        return sorted({name for names in comm.gather({comm.rank: mine}).values() for name in names})


def _to_plain(upload: Upload) -> list[Any]:
    return [dict(upload.parts), upload.receivers]


def _from_plain(plain: list[Any]) -> Upload:
    parts, receivers = plain
    return Upload(parts[ALONE], receivers=receivers) if ALONE in parts else Upload(**parts)


codec.register(Upload, "upload", _to_plain, _from_plain)
