"""Upload: what a client sends, and `Uplink`, the one way in which it reaches the server.

A client's turn (`Federation.run`, `Federation.stream`) returns an `Upload`, or None if the client
sends nothing. Inside the turn the upload passes the transforms of the federation, is examined for
nan, and is counted. What comes through is written into the replay log, and is what the server has
of the client: `run` and `stream` return it, and `mean`, `gather` and the moves between ranks take
it as it is and count nothing. If the server may know only means of uploads, `run` and `stream`
return sealed parts (`sealed.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hpcfed.comm import codec
from hpcfed.core import user_code
from hpcfed.core.errors import DivergedError
from hpcfed.core.payload import is_row_major, map_tensors, nbytes, not_finite, row_major
from hpcfed.federation.sealed import Sealed

if TYPE_CHECKING:
    import torch

    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation

T = TypeVar("T")
Part = Any  # of an upload: a Mean, Params, a tensor, or dicts and lists of tensors
ALONE = ""  # name of the part of an upload that has only one


@dataclass(frozen=True, init=False)
class Upload:
    """What one client sends in one message.

    `Upload(Mean.of(params, weight))` for one part, `Upload(model=..., control=...)` for several.

    relative_to: the value of which a part is a new version, so that part - relative_to is the
    update; zeros for an update that the server adds to those before, so that compression makes up
    later for what it loses; None, the default: transforms change the part itself. For several
    parts, a dict by the part's name. Transforms that need it (compression, clipping) get it; it is
    not sent.
    receivers: number of clients to which the upload goes; each of them gets all bytes.
    lasting: whether the values at the same positions of the client's next upload are new versions
    of these; then what compression loses is added to that upload. They are not if they belong to
    public examples that were drawn for this round.
    sizes: bytes of the parts that travel encoded, by name; transforms set them.
    updates: names of the parts that a transform has replaced by their updates, part - relative_to.
    """

    parts: Mapping[str, Part]
    relative_to: Mapping[str, Any]
    receivers: int
    lasting: bool
    sizes: Mapping[str, int]
    updates: frozenset[str]

    def __init__(
        self,
        part: Part = None,
        /,
        *,
        relative_to: Any = None,
        receivers: int = 1,
        lasting: bool = True,
        **parts: Part,
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
        object.__setattr__(self, "lasting", lasting)
        object.__setattr__(self, "sizes", {})
        object.__setattr__(self, "updates", frozenset())

    def __getitem__(self, name: str) -> Part:
        return self.parts[name]

    @property
    def value(self) -> Any:
        """The only part, or all parts by name."""
        return self.parts[ALONE] if ALONE in self.parts else dict(self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of one message: of all parts as they travel."""
        return sum(self.sizes.get(name, nbytes(part)) for name, part in self.parts.items())

    def changed(
        self,
        parts: Mapping[str, Part],
        *,
        sizes: Mapping[str, int] | None = None,
        updates: Iterable[str] = (),
    ) -> Upload:
        """Return the upload with other values of some parts, as a transform makes them.

        sizes: bytes of the parts that travel encoded, by name; other parts keep theirs.
        updates: names of parts that are now part - relative_to.
        """
        return self._replace(
            parts={**self.parts, **parts},
            sizes={**self.sizes, **(sizes or {})},
            updates=self.updates | frozenset(updates),
        )

    def without(self, name: str) -> Upload:
        """Return the upload without one of its parts."""
        return self._replace(parts={n: part for n, part in self.parts.items() if n != name})

    def with_references(self, relative_to: Mapping[str, Any]) -> Upload:
        """Return the upload with other values to which its parts are relative."""
        return self._replace(relative_to=dict(relative_to))

    def _replace(self, **fields: Any) -> Upload:
        upload = copy(self)
        for name, value in fields.items():
            object.__setattr__(upload, name, value)
        return upload

    def on_device(self, device: torch.device) -> Upload:
        return self.changed(map_tensors(dict(self.parts), lambda tensor: tensor.to(device)))


class Transform:
    """A change of all uploads and downloads: compression, clipping, noise, an attack.

    It changes nothing by default. What it keeps of a client from round to round is in
    `client.memory`, never in its own fields: a trial uses the same object for other clients.
    keeps_state: whether it keeps anything. Then clients are not trained several at once.
    extra_download: bytes that a client receives beside each value that the server sends.

    A complete one, noise on the float32 values that clients send; weights of means, numbers of
    other types, and statistics of batch normalisation stay:

        import torch
        from hpcfed.core import rng
        from hpcfed.federation.transforms.values import turn_of, values_of, with_values
        from hpcfed.federation.upload import Transform

        class Noise(Transform):
            keeps_state = False

            def __init__(self, std):
                self.std = std

            def noisy(self, tensor, g):
                noise = torch.as_tensor(g.standard_normal(tuple(tensor.shape)))
                return tensor + self.std * noise.to(tensor)

            def upload(self, fed, client, upload):
                g = rng.stream(fed.seed, "noise", fed.moment, client.id, turn_of(fed, client))
                parts = {}
                for name, part in upload.parts.items():
                    noisy = {value.path: self.noisy(value.tensor, g) for value in values_of(part)}
                    parts[name] = with_values(part, noisy)
                return upload.changed(parts)
    """

    keeps_state = True
    extra_download = 0

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        """Return what the server receives of a client's upload (`Upload.changed`).

        It is called inside the client's turn.
        """
        return upload

    def download(self, fed: Federation, client: Client, value: T) -> tuple[T, int | None]:
        """Return what the client receives of a value that the server sends, and its bytes.

        It is called inside the client's turn. The bytes are None if the value travels as it is.
        """
        return value, None

    def examples(self, fed: Federation, client: Client, train: Shard) -> Shard:
        """Return the examples on which the client trains in its turn, as an attack changes them."""
        return train

    def of_trial(self) -> Transform:
        """Return what stands in its place in a trial, of which only bytes count."""
        return self


class CohortTransform(Transform):
    """A transform that needs the uploads of all clients of a round, such as an attack in common."""

    def received(self, fed: Federation, uploads: dict[int, Upload]) -> dict[int, Upload]:
        """Return what the server computes with, of this rank's uploads, by client.

        Uploads still have the values to which their parts are relative.
        It is called after the turns of `run` or `stream`. Collective: all ranks call it, also those
        without clients.
        """
        return uploads


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
        if self._fed.store.careful:
            sent = [dict(upload.parts), dict(upload.relative_to)]
            parts, references = self._fed.store.apart(sent)
            upload = upload.changed(parts).with_references(references)
        for transform in self._fed.transforms:
            upload = transform.upload(self._fed, client, upload)
        if not is_row_major(parts := dict(upload.parts)):
            upload = upload.changed(row_major(parts))
        self._examine(client, upload.parts)
        self._fed.tallies[client.id].up += upload.receivers * upload.nbytes
        return upload if self.waits else upload.with_references({})

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

    @property
    def waits(self) -> bool:
        """Whether the server receives no upload before all turns are done."""
        return any(isinstance(transform, CohortTransform) for transform in self._fed.transforms)

    def received_together(self, uploads: dict[int, Upload]) -> Iterator[tuple[int, Any]]:
        """Iterate over client and what the server has of its upload; collective.

        uploads: of all turns of this rank's clients.
        """
        for transform in self._fed.transforms:
            if isinstance(transform, CohortTransform):
                uploads = transform.received(self._fed, uploads)
        for k, upload in uploads.items():
            yield k, self.received(k, upload)

    def received(self, k: int, upload: Upload) -> Any:
        """Return what the server has of client k's upload: its only part, or a dict of parts."""
        rule = self._fed.rule
        if rule is None or not rule.seals:
            return upload.value
        upload = rule.received(self._fed, k, upload)
        sealed = {
            name: Sealed(k, part, name in upload.updates, rule)
            for name, part in upload.parts.items()
        }
        return sealed.get(ALONE, sealed)


def _to_plain(upload: Upload) -> list[Any]:
    references = dict(upload.relative_to)
    return [dict(upload.parts), upload.receivers, sorted(upload.updates), references]


def _from_plain(plain: list[Any]) -> Upload:
    parts, receivers, updates, references = plain
    upload = Upload(parts[ALONE], receivers=receivers) if ALONE in parts else Upload(**parts)
    return upload.with_references(references).changed(parts, updates=updates)


codec.register(Upload, "upload", _to_plain, _from_plain)
