"""SecAgg and SecAgg+: masks that cancel in pairs, and secrets shared among neighbours.

Bonawitz et al., CCS 2017 (IACR 2017/281), fig. 4 without the stage of consistency, which an active
server calls for; Bell et al., CCS 2020 (IACR 2020/704). Both are this module, with another graph.

Each client k has a seed b_k of its own and, with each neighbour j, an agreed key s_kj. It sends

    y_k = x_k + PRG(b_k) + sum over j > k of PRG(s_kj) - sum over j < k of PRG(s_kj)  mod 2**64.

In the sum over all clients the agreed masks cancel. Its neighbours hold shares of b_k and of the
private key of the s_kj. If k has sent y_k, they give the server those of b_k, with which it removes
PRG(b_k). If k has dropped out before, they give it those of the private key, with which it removes
the masks that k should have cancelled. Of no client does the server get both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from hpcfed.core.payload import bytes_of_bits
from hpcfed.federation.transforms.secure import shamir
from hpcfed.federation.transforms.secure.attendance import (
    ANSWERS,
    INPUTS,
    KEYS,
    SHARES,
    Attendance,
)
from hpcfed.federation.transforms.secure.costs import Cost
from hpcfed.federation.transforms.secure.graph import Graph
from hpcfed.federation.transforms.secure.keys import (
    KEY,
    Stream,
    add_streams,
    agree,
    public_key,
    seal,
    unseal,
)

CHANNEL, MASKS = "hpcfed secure channel", "hpcfed masks"  # purposes of agreed keys
Gather = Callable[[dict[int, Any]], dict[int, Any]]  # items of all ranks, by client


class Member:
    """A client in one secure sum.

    t: number of shares that give a secret.
    draw: returns random bytes.
    """

    def __init__(self, k: int, t: int, draw: Callable[[int], bytes]) -> None:
        self.k, self._t, self._draw = k, t, draw
        self._private, self._masking, self._seed = draw(KEY), draw(KEY), draw(KEY)
        self._channels: dict[int, bytes] = {}  # keys agreed with the neighbours
        self._masks: dict[int, bytes] = {}
        self._shares: dict[int, bytes] = {}  # shares of both secrets of each neighbour, and of k

    def advertise(self) -> bytes:
        """Return two public keys: of the sealed channels, and of the masks."""
        return public_key(self._private) + public_key(self._masking)

    def share(self, keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return for each neighbour its sealed shares of the seed and of the masks' private key.

        keys: what the neighbours advertise.
        """
        self._channels = {j: agree(self._private, key[:KEY], CHANNEL) for j, key in keys.items()}
        self._masks = {j: agree(self._masking, key[KEY:], MASKS) for j, key in keys.items()}
        holders = sorted([self.k, *keys])
        points = [k + 1 for k in holders]
        seeds = shamir.split(self._seed, points, self._t, self._draw)
        privates = shamir.split(self._masking, points, self._t, self._draw)
        both = {k: a + b for k, a, b in zip(holders, seeds, privates, strict=True)}
        self._shares[self.k] = both.pop(self.k)
        return {j: seal(self._channels[j], self.k, shares) for j, shares in both.items()}

    def mask(self, values: np.ndarray, sharers: Collection[int]) -> np.ndarray:
        """Add the masks to values, [m] uint64, in place, and return them.

        sharers: neighbours that have sent shares of their secrets.
        """
        common = [(self._masks[j], sign(self.k, j)) for j in sharers]
        add_streams(values, [(self._seed, 1), *common])
        return values

    def answer(self, sealed: Mapping[int, bytes], senders: Collection[int]) -> dict[int, bytes]:
        """Return one share of each neighbour that has sent shares, and of k itself.

        sealed: the shares that the neighbours have sent.
        senders: clients that have sent masked values. Of these it is the share of the seed, of the
        others the share of the private key.
        Raises ValueError for a message that was changed on its way.
        """
        for j, message in sealed.items():
            self._shares[j] = unseal(self._channels[j], j, message)
        return {
            j: both[: shamir.SHARE] if j in senders else both[shamir.SHARE :]
            for j, both in self._shares.items()
        }


def sign(k: int, j: int) -> int:
    """Return the sign with which client k adds the mask that it has in common with client j."""
    return 1 if j > k else -1


class PairwiseSum:
    """One secure sum of the clients of all ranks; each rank does the work of its own clients.

    The server is a copy on every rank, and all copies share the removal of masks.

    words: values in the sum.
    t: number of shares that give a secret.
    mine: clients of this rank.
    draw: client -> a function that returns random bytes, the same wherever the client is.
    gather: as `Comm.gather`.
    share: number of this rank and number of ranks.
    bits_sent: lower bits of a masked value that travel; the server needs no others of the sum.
    """

    def __init__(
        self,
        attendance: Attendance,
        words: int,
        graph: Graph,
        t: int,
        mine: Collection[int],
        draw: Callable[[int], Callable[[int], bytes]],
        gather: Gather,
        share: tuple[int, int] = (0, 1),
        bits_sent: int = 64,
    ) -> None:
        self.bits_sent = bits_sent
        self.attendance, self.words, self._gather = attendance, words, gather
        self.graph, self.t = graph, t
        self._rank, self._ranks = share
        self.members = {k: Member(k, t, draw(k)) for k in attendance.keys if k in mine}
        self.costs = {k: Cost() for k in self.members}  # bytes of the messages, as they pass
        self._keys: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}

    def prepare(self, last: int = SHARES) -> None:
        """Do the stages before masked values are sent, or only the first; collective.

        last: number of the last stage.
        """
        members, costs = self.members, self.costs
        self._keys = self._gather({k: member.advertise() for k, member in members.items()})
        for k in members:
            costs[k].up[KEYS] = len(self._keys[k])
            costs[k].down[KEYS] = sum(len(self._keys[j]) for j in self._among(k, KEYS))
        if last < SHARES:
            return
        mine = [k for k in self.attendance.shares if k in members]
        sent = {k: members[k].share({j: self._keys[j] for j in self._among(k, KEYS)}) for k in mine}
        self._sealed = self._gather(sent)
        for k in mine:
            costs[k].up[SHARES] = sum(map(len, sent[k].values()))
            costs[k].down[SHARES] = sum(len(self._sealed[j][k]) for j in self._among(k, SHARES))

    def empty(self) -> np.ndarray:
        """Return the sum of no masked values, [m] uint64."""
        return np.zeros(self.words, np.uint64)

    def add(self, total: np.ndarray, masked: np.ndarray) -> None:
        """Add what a client sends to the sum, in place."""
        total += masked

    def masked(self, k: int, values: np.ndarray) -> np.ndarray:
        """Return what client k of this rank sends for its values, [m] uint64; works in place."""
        masked = self.members[k].mask(values, self._among(k, SHARES))
        self.costs[k].up[INPUTS] = bytes_of_bits(self.bits_sent * len(masked))
        self.costs[k].down[INPUTS] = bytes_of_bits(1 + len(self._among(k, KEYS)))
        return masked

    def unmask(self, total: np.ndarray) -> np.ndarray:
        """Subtract this rank's part of the masks that are left in the sum, in place; collective.

        total: [m] uint64, the sum of this rank's masked values. Over all ranks the results sum up
        to the values without masks.
        Raises ValueError for a share or a message that is wrong.
        """
        answers = self._answers()
        senders = self.attendance.sets[INPUTS]
        streams: list[Stream] = []
        for i, k in enumerate(self.attendance.shares):
            if i % self._ranks != self._rank:
                continue
            receivers = [j for j in self._among(k, INPUTS) if k not in senders]
            if k in senders or receivers:
                shares = {j + 1: by_client[k] for j, by_client in answers.items() if k in by_client}
                secret = shamir.join(shares, self.t)
            if k in senders:
                streams.append((secret, -1))
                continue
            for j in receivers:
                streams.append((agree(secret, self._keys[j][KEY:], MASKS), -sign(j, k)))
        add_streams(total, streams)
        return total

    def integers(self, total: np.ndarray) -> np.ndarray:
        """Return the values, [m] int64, of their sum over all ranks without masks."""
        return total.view(np.int64)

    def _answers(self) -> dict[int, dict[int, bytes]]:
        """Return the shares that each client gives the server, by client; collective."""
        mine = [k for k in self.attendance.answers if k in self.members]
        sent = {}
        for k in mine:
            sealed = {j: self._sealed[j][k] for j in self._among(k, SHARES)}
            sent[k] = self.members[k].answer(sealed, self.attendance.sets[INPUTS])
            self.costs[k].up[ANSWERS] = sum(map(len, sent[k].values()))
        return self._gather(sent)

    def _among(self, k: int, stage: int) -> list[int]:
        """Return the neighbours of client k that have completed a stage."""
        present = self.attendance.sets[stage]
        return [j for j in self.graph.neighbours(k) if j in present]
