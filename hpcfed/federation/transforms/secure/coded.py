"""LightSecAgg: masks that are coded, so that their sum is recovered in one step.

So et al., MLSys 2022, arXiv:2109.14236. The work of the server does not depend on who drops out.

Each client cuts its mask z_k into U - T pieces, appends T random ones, and gives each client j the
value at point j of the polynomial that has these pieces as its coefficients. It sends x_k + z_k.
Each of U clients then gives the server the sum of the shares of those that have sent; these are
values of the sum of the polynomials, whose first U - T coefficients are the sum of the masks. T
clients together learn nothing about the mask of another one.

A sum in this code lives in a ring in which differences of points have inverses (`field`): modulo
a product of three primes that is just below 2**55, so that the integers of a sum (at most 2**53 in
magnitude) are recovered exactly. A value takes 8 bytes, as it does modulo 2**64.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from hpcfed.core.payload import bytes_of_bits
from hpcfed.federation.transforms.secure import field
from hpcfed.federation.transforms.secure.attendance import (
    ANSWERS,
    INPUTS,
    KEYS,
    SHARES,
    Attendance,
)
from hpcfed.federation.transforms.secure.costs import Cost
from hpcfed.federation.transforms.secure.keys import (
    KEY,
    agree,
    public_key,
    seal,
    unseal,
)
from hpcfed.federation.transforms.secure.pairwise import CHANNEL, Gather


class CodedMember:
    """A client in one secure sum.

    piece: values in a piece of its mask.
    pieces: of the mask and, after these, of noise.
    draw: returns random bytes.
    """

    def __init__(self, k: int, piece: int, pieces: int, draw: Callable[[int], bytes]) -> None:
        self.k, self._piece, self._pieces = k, piece, pieces
        self._private, self._seed = draw(KEY), draw(KEY)
        self._channels: dict[int, bytes] = {}  # keys agreed with the other clients
        self._sum = np.zeros(piece, np.uint64)  # of the shares of those that have sent

    def advertise(self) -> bytes:
        return public_key(self._private)

    def agree(self, keys: Mapping[int, bytes]) -> None:
        """Agree on a key with each of the other clients. keys: what they advertise."""
        self._channels = {j: agree(self._private, key, CHANNEL) for j, key in keys.items()}

    def shares(self, powers: np.ndarray) -> np.ndarray:
        """Return the shares of the mask, [n, piece] uint64.

        powers: of the receivers' points, [3, n, pieces].
        """
        words = field.draw(self._seed, self._pieces * self._piece)
        return field.product(powers, words.reshape(self._pieces, self._piece))

    def send(self, j: int, share: np.ndarray) -> bytes:
        """Return the share of client j, [piece] uint64, sealed for it."""
        return seal(self._channels[j], self.k, share.tobytes())

    def receive(self, j: int, sealed: bytes) -> np.ndarray:
        """Return the share that client j has sent, [piece] uint64.

        Raises ValueError for a message that was changed on its way.
        """
        return np.frombuffer(unseal(self._channels[j], j, sealed), np.uint64)

    def add(self, share: np.ndarray) -> None:
        """Add the share of a client that has sent its masked values to what k answers."""
        field.add(self._sum, share)

    def mask(self, values: np.ndarray) -> np.ndarray:
        """Add the mask to values, [m] int64, in place, and return residues, [m] uint64."""
        return field.mask(values, self._seed)

    def answer(self) -> np.ndarray:
        """Return the sum of the shares of the clients that have sent, [piece] uint64."""
        return self._sum


class CodedSum:
    """One secure sum of the clients of all ranks; each rank does the work of its own clients.

    words: values in the sum.
    survivors: clients of which the server needs an answer, U.
    colluding: clients that together learn nothing, T < U.
    The other parameters are those of `PairwiseSum`.
    """

    def __init__(
        self,
        attendance: Attendance,
        words: int,
        survivors: int,
        colluding: int,
        mine: Collection[int],
        draw: Callable[[int], Callable[[int], bytes]],
        gather: Gather,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self.attendance, self.words, self._gather = attendance, words, gather
        self.survivors, self.masks = survivors, survivors - colluding
        self._rank, self._ranks = share
        self.piece = piece_of(words, survivors, colluding)
        self.members = {
            k: CodedMember(k, self.piece, survivors, draw(k)) for k in attendance.keys if k in mine
        }
        self.costs = {k: Cost() for k in self.members}
        self._points = {k: i + 1 for i, k in enumerate(attendance.keys)}

    def prepare(self, last: int = SHARES) -> None:
        """Do the stages before masked values are sent, or only the first; collective.

        last: number of the last stage.
        """
        clients, members = self.attendance.keys, self.members
        keys = self._gather({k: member.advertise() for k, member in members.items()})
        for k in members:
            self.costs[k].up[KEYS] = len(keys[k])
            self.costs[k].down[KEYS] = sum(len(keys[j]) for j in clients if j != k)
        if last < SHARES:
            return
        for k, member in members.items():
            member.agree({j: key for j, key in keys.items() if j != k})
        powers = field.powers(list(self._points.values()), self.survivors)
        sharers = [k for k in self.attendance.shares if k in members]
        counts = self._gather({self._rank: len(sharers)})
        for i in range(max(counts.values())):  # all ranks at once, one client of each
            self._share(sharers[i : i + 1], powers)

    def _share(self, sharers: Sequence[int], powers: np.ndarray) -> None:
        """Send the shares of the masks of at most one client of each rank; collective."""
        senders, receivers = self.attendance.sets[INPUTS], self.attendance.sets[SHARES]
        sent: dict[int, dict[int, bytes]] = {}
        for k in sharers:
            member, shares = self.members[k], self.members[k].shares(powers)
            pairs = zip(self.attendance.keys, shares, strict=True)
            sent[k] = {j: member.send(j, share) for j, share in pairs if j != k}
            self.costs[k].up[SHARES] = sum(map(len, sent[k].values()))
            if k in senders:
                member.add(shares[self._points[k] - 1])
        for k, messages in self._gather(sent).items():
            for j, member in self.members.items():
                if j == k or j not in receivers:
                    continue
                self.costs[j].down[SHARES] += len(messages[j])
                share = member.receive(k, messages[j])
                if k in senders:
                    member.add(share)

    def empty(self) -> np.ndarray:
        """Return the sum of no masked values, [m] uint64."""
        return np.zeros(self.words, np.uint64)

    def add(self, total: np.ndarray, masked: np.ndarray) -> None:
        """Add what a client sends to the sum, in place."""
        field.add(total, masked)

    def masked(self, k: int, values: np.ndarray) -> np.ndarray:
        """Return what client k of this rank sends for its values, [m] uint64; works in place."""
        masked = self.members[k].mask(values.view(np.int64))
        self.costs[k].up[INPUTS] = masked.nbytes
        self.costs[k].down[INPUTS] = bytes_of_bits(len(self.attendance.keys))
        return masked

    def unmask(self, total: np.ndarray) -> np.ndarray:
        """Subtract this rank's part of the sum of masks from its sum; collective.

        total: [m] uint64, the sum of this rank's masked values.
        Returns words that all ranks may add up, [2, m] uint64.
        Raises ValueError if answers contradict each other, as far as more clients than necessary
        have given one.
        """
        answers = self._answers()
        receivers = sorted(answers)
        points = [self._points[j] for j in receivers]
        values = np.stack([answers[j] for j in receivers])
        decode = field.inverse_powers(points[: self.survivors])
        check(decode, values, points, self.survivors)
        mine = slice(self._rank, self.masks, self._ranks)
        masks = field.product(decode[:, mine], values[: self.survivors])
        for piece, mask in zip(range(self.masks)[mine], masks, strict=True):
            start = piece * self.piece
            part = total[start : start + self.piece]
            field.subtract(part, mask[: len(part)])
        return field.halves(total)

    def integers(self, total: np.ndarray) -> np.ndarray:
        """Return the values, [m] int64, of their sum over all ranks without masks.

        total: what `unmask` returned, added up.
        """
        return field.integers(field.join(total), len(self.attendance.inputs))

    def _answers(self) -> dict[int, np.ndarray]:
        """Return the sum of shares that each client gives the server; collective."""
        mine = [k for k in self.attendance.answers if k in self.members]
        sent = {k: self.members[k].answer() for k in mine}
        for k in mine:
            self.costs[k].up[ANSWERS] = sent[k].nbytes
        return self._gather(sent)


def check(decode: np.ndarray, values: np.ndarray, points: Sequence[int], survivors: int) -> None:
    """Raise ValueError if the first answer that is not necessary contradicts the others."""
    if len(points) == survivors:
        return
    power = field.powers(points[survivors : survivors + 1], survivors)
    row = [
        a.astype(object) @ b.astype(object) % p
        for a, b, p in zip(power, decode, field.PRIMES, strict=True)
    ]
    expected = field.product(np.array(row, np.int64), values[:survivors])
    if (expected[0] != values[survivors]).any():
        raise ValueError("secure aggregation: the answers of clients contradict each other")


def piece_of(words: int, survivors: int, colluding: int) -> int:
    """Return the values of a piece of a mask, which is cut into survivors - colluding pieces."""
    return -(-words // (survivors - colluding))
