"""Signs with majority vote: each value moves by eta in the direction that most clients give it.

Bernstein, Wang, Azizzadenesheli and Anandkumar, ICML 2018, arXiv:1802.04434 (signSGD with majority
vote). A client sends one bit for each value of its update, its sign; 0 counts as positive. The
server adds the signs up and moves by

    w <- w + eta sign(sum_k sign(u_k)),

in which each client that has the value counts the same, whatever its weight, and a value with a
tied vote does not move. Statistics of batch normalisation and whole numbers have no vote: they are
averaged as the method does.

A client that has the server's last value receives the votes since then: one bit for each value, or
8/5 bits after a vote with ties. If the complete value is shorter, or if the client has no earlier
one, it receives that. So it does if the method's server changes what the votes gave.

With secure sums the server learns the sum of the signs of each value, and no single sign. Nobody
bounds what is averaged beside votes, so that models have to be without statistics.

Deviation: the paper's clients send the signs of gradients. Here these are updates of local
training, which is the same if it is one step of plain SGD.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcfed.core import rng
from hpcfed.core.averaging import Quotients, Row
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params, Per, Term
from hpcfed.core.payload import nbytes
from hpcfed.federation.sealed import MeanRule, Sealed
from hpcfed.federation.transforms.bounded import DeclaredRows
from hpcfed.federation.transforms.compression.bits import (
    Reader,
    bytes_of_digits,
    pack_digits,
    unpack_digits,
)
from hpcfed.federation.transforms.compression.sign import Sign
from hpcfed.federation.transforms.compression.transform import STATE
from hpcfed.federation.transforms.values import (
    array,
    is_encoded,
    tensor,
    update_of,
    values_of,
    with_values,
)
from hpcfed.federation.upload import Transform, Upload

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.transforms.secure.sums import SecureSums

T = TypeVar("T")
SIGNS, TIES = b"\0", b"\1"  # the first byte of an encoded vote


class Signs(Transform):
    """Uploads are the signs of updates, and downloads the votes since the client's last one."""

    def __init__(self) -> None:
        self._codec = Sign(eta=1.0)

    def upload(self, fed: Federation, client: Client, upload: Upload) -> Upload:
        parts, sizes = {}, {}
        for name, part in upload.parts.items():
            values = list(values_of(part, upload.relative_to.get(name)))
            if not values:
                continue
            if not isinstance(part, Mean) or any(value.reference is None for value in values):
                raise ConfigError(
                    f"compression.by = 'vote': clients of {fed.job.algorithm.name} send values "
                    f"that are no new versions of what they received, and whose signs give no "
                    f"direction; set compression.by = 'sign', or take another method, such as "
                    f"fedavg"
                )
            targets = [update_of(value) for value in values]
            # codecs that draw nothing take a stream too
            message = self._codec.encode(targets, rng.stream(fed.seed, "compress"))
            shapes = [target.shape for target in targets]
            signs = self._codec.decode(message, shapes, rng.stream(fed.seed, "compress"))
            by_path = {v.path: tensor(x, v.tensor) for v, x in zip(values, signs, strict=True)}
            parts[name] = with_values(part, by_path)
            sizes[name] = nbytes(part) - sum(v.tensor.nbytes for v in values) + len(message)
        return upload.changed(parts, sizes=sizes, updates=parts)

    def download(self, fed: Federation, client: Client, value: T) -> tuple[T, int | None]:
        values = list(values_of(value))
        if not values:
            return value, None
        memory = client.memory.get(STATE, {})
        digests, size = dict(memory.get("votes", {})), nbytes(value)
        for v in values:
            digest, complete = digest_of(v.tensor), v.tensor.nbytes
            size += lengths_to(fed, digest).get(digests.get(v.path, ""), complete) - complete
            digests[v.path] = digest
        client.memory[STATE] = memory | {"votes": digests}
        return value, size

    def of_trial(self) -> AnnouncedSigns:
        return AnnouncedSigns()


class AnnouncedSigns(Signs):
    """Signs in a trial: downloads have the most bytes for a client that has the last value.

    In the first round nobody has one, so that only what follows counts.
    """

    def download(self, fed: Federation, client: Client, value: T) -> tuple[T, int | None]:
        values = list(values_of(value))
        if not values:
            return value, None
        size = nbytes(value)
        for v in values:
            complete = v.tensor.nbytes
            if lengths_to(fed, digest_of(v.tensor)):
                size += len(TIES) + bytes_of_digits(v.tensor.numel()) - complete
            elif not fed.t:
                size -= complete
        return value, size


class MajorityVote(MeanRule):
    """Moves what clients have trained by eta in the direction of most of their signs.

    lengths: bytes of the votes from earlier values of a tensor to the latest one, by the digests of
    these values; by the number of a mean in its round and the tensor's name.
    secure: adds signs up such that single ones stay hidden; None: they are added up openly.
    """

    hidden_by = "compression.by = 'vote'"
    hides = "leaves only signs of what single clients send"
    instead = "compression.by = 'sign'"
    hides_counts = False

    def __init__(self, eta: float) -> None:
        self.eta = eta
        self.secure: SecureSums | None = None
        self.lengths: dict[str, dict[str, int]] = {}
        self._closed = self.lengths  # as they were after the last complete round
        self._call = 0

    def begin(self) -> None:
        self.lengths, self._call = dict(self._closed), 0

    def close(self, fed: Federation, uploads: int, reports: Collection[float]) -> None:
        self._closed = self.lengths

    def fresh(self) -> MajorityVote:
        rule = copy(self)
        rule.secure = self.secure and self.secure.of_trial()
        rule.from_tree({})
        return rule

    def mask(self, secure: SecureSums) -> None:
        """Let the server learn sums of signs alone."""
        self.secure, self.hidden_by = secure, f"secure.by = {secure.secure.by!r}"
        self.hides, self.instead = MeanRule.hides, "secure.by = 'none'"
        self.hides_counts = True

    def mean(
        self, fed: Federation, parts: list[tuple[int, Sealed]], keep: Params, per: Per
    ) -> Params:
        sent = [(part.client, term) for _, part in parts for term in part.terms_for(self)]
        clients, terms = [k for k, _ in sent], [term for _, term in sent]
        fed.note_shapes(terms, keep)
        voted = Params({name: value for name, value in keep.items() if is_encoded(name, value)})
        rest = Params({name: value for name, value in keep.items() if name not in voted})
        if rest and self.secure:
            raise ConfigError(
                f"{self.hidden_by}: with compression.by = 'vote' clients send signs, but "
                f"{next(iter(rest))} is averaged, and nobody knows a bound of its values "
                f"beforehand; set models.norm = 'group', or another model without statistics"
            )
        if rest:
            rest = fed.exchange.mean([restricted(term, rest) for term in terms], rest, per)
        if voted:
            ballots = [ballot(restricted(term, voted)) for term in terms]
            voted = self._vote(fed, clients, ballots, voted, per)
        self._call += 1
        return Params({name: (voted if name in voted else rest)[name] for name in keep})

    def _vote(
        self, fed: Federation, clients: Sequence[int], ballots: list[Term], keep: Params, per: Per
    ) -> Params:
        """Return the tensors after the vote; collective.

        clients: of the ballots.
        """
        values = {}
        for name, votes in self._count(fed, clients, ballots, keep, per).items():
            message = encode(array(votes).ravel().astype(np.int8))
            values[name] = move(keep[name], decode(message, votes.numel()), self.eta)
            key = f"{self._call} {name}"
            self.lengths[key] = extended(
                self.lengths.get(key, {}), keep[name], len(message), values[name]
            )
        return Params(values)

    def _count(
        self, fed: Federation, clients: Sequence[int], ballots: list[Term], keep: Params, per: Per
    ) -> Params:
        """Return the vote on each value: -1, 0 or 1; collective."""
        if self.secure is None:
            return fed.exchange.mean(ballots, keep, per, Votes)
        fed.exchange.wait("mean")
        with fed.clock("communicate"):
            votes = Votes(keep, per)
            bits = (2 * fed.K).bit_length()  # of a sum from -K to K
            rows = [Row(term, keep, per) for term in ballots]
            ones = np.ones(len(votes.arrays))
            declared = DeclaredRows(rows, clients, fed.K, ones, bits)
            shapes, factors = [array.shape for array in votes.arrays], [row.factor for row in rows]
            self.secure.sum(fed, declared, shapes, factors, votes)
        return votes.mean()

    def to_tree(self) -> dict[str, Any]:
        return {key: dict(lengths) for key, lengths in self._closed.items()}

    def from_tree(self, tree: dict[str, Any]) -> None:
        self._closed = {
            key: {digest: int(length) for digest, length in lengths.items()}
            for key, lengths in tree.items()
        }
        self.begin()


def extended(lengths: Mapping[str, int], old: Tensor, length: int, new: Tensor) -> dict[str, int]:
    """Return the bytes of votes to a new value, after a vote of this length on the old one.

    lengths: of the votes to the latest value, by the digests of earlier ones. Earlier values whose
    votes are as long as the value itself are left out.
    """
    latest = digest_of(old)
    if lengths.get(latest) != 0:  # the server has changed what the votes gave
        lengths = {latest: 0}
    longer = {digest: n + length for digest, n in lengths.items()} | {digest_of(new): 0}
    return {digest: n for digest, n in longer.items() if n < new.nbytes}


def lengths_to(fed: Federation, digest: str) -> Mapping[str, int]:
    """Return the bytes of votes to the value with this digest, by digest of earlier ones.

    Empty: no vote has made it.
    """
    assert isinstance(fed.rule, MajorityVote)
    histories = fed.rule.lengths.values()
    return next((lengths for lengths in histories if lengths.get(digest) == 0), {})


class Votes(Quotients):
    """Receiver of sums of signs, which turns them into votes: -1, 0 or 1."""

    def finish(self, i: int, start: int, total: np.ndarray) -> None:
        if i >= self.n_first:
            np.sign(total, out=total)


def restricted(term: Term, keep: Params) -> Term:
    """Return the part of a term that has these names."""
    weight = term.weight
    if isinstance(weight, Params):
        weight = Params({name: w for name, w in weight.items() if name in keep})
    at = {name: axes for name, axes in term.at.items() if name in keep}
    return Term(Params({n: v for n, v in term.value.items() if n in keep}), weight, at)


def ballot(term: Term) -> Term:
    """Return a term of signs in which each value has one vote, or none if its weight is 0."""
    if not isinstance(term.weight, Params):
        return term._replace(weight=1.0)
    return term._replace(weight=Params({n: (w > 0).float() for n, w in term.weight.items()}))


def encode(votes: np.ndarray) -> bytes:
    """Return the message of votes: -1, 0 or 1, [n] int8."""
    if votes.all():
        return SIGNS + np.packbits(votes < 0).tobytes()
    return TIES + pack_digits(votes % 3)


def decode(message: bytes, n: int) -> np.ndarray:
    """Return the n votes that `encode` has written, [n] int8."""
    reader = Reader(message)
    if reader.bytes(1) == SIGNS:
        return 1 - 2 * reader.numbers(n, 1).astype(np.int8)
    return np.array([0, 1, -1], np.int8)[unpack_digits(reader, n)]


def move(old: Tensor, votes: np.ndarray, eta: float) -> Tensor:
    """Return a tensor after a vote; server and clients get the same bits."""
    direction = torch.from_numpy(votes).to(old.device).view(old.shape)
    return (old.double() + eta * direction).to(old.dtype)


def digest_of(value: Tensor) -> str:
    """Return a checksum of the bits of a tensor."""
    data = value.detach().cpu().contiguous().numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=16).hexdigest()
