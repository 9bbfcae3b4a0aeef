"""What a secure sum costs: bytes of each message by stage, and seconds of clients and server.

The bytes are those of the tables of Bonawitz et al., CCS 2017 (SecAgg; SecAgg+ with neighbours in
place of all others) and So et al., MLSys 2022 (LightSecAgg), with the sizes of the messages here
and without headers: a message's order says whose key or share comes when.

Seconds are counts of operations times what they take on one core of a server (`Speeds`). They are
not measured during a run, so that virtual time is the same on all machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hpcfed.core.payload import bytes_of_bits
from hpcfed.federation.transforms.secure.attendance import (
    ANSWERS,
    INPUTS,
    KEYS,
    SHARES,
    STAGES,
    Attendance,
)
from hpcfed.federation.transforms.secure.graph import Complete, Graph
from hpcfed.federation.transforms.secure.keys import KEY, TAG, WORD
from hpcfed.federation.transforms.secure.shamir import SHARE


@dataclass(frozen=True)
class Sizes:
    """Bytes of the parts of messages."""

    key: int = KEY
    share: int = SHARE
    tag: int = TAG
    value: float = WORD


@dataclass(frozen=True)
class Speeds:
    """Seconds of the operations of secure sums on one core; `slowdown` applies to clients alone."""

    agreement: float = 46e-6  # X25519 and HKDF
    byte: float = 1 / 0.8e9  # of a mask stream, made and added
    share_product: float = 0.25e-6  # of two numbers of 521 bits, modulo p
    field_product: float = 0.15e-9  # of two residues, within a matrix product
    field_value: float = 8e-9  # of a value in a factor or in the result of a matrix product
    slowdown: float = 1.0


@dataclass
class Cost:
    """Bytes that a client sends and receives by stage, and its seconds of computation."""

    up: list[int] = field(default_factory=lambda: [0] * len(STAGES))
    down: list[int] = field(default_factory=lambda: [0] * len(STAGES))
    seconds: float = 0.0


def pairwise_cost(
    attendance: Attendance,
    graph: Graph,
    words: int,
    clients: Iterable[int],
    last: int = ANSWERS,
    sizes: Sizes = Sizes(),
) -> dict[int, Cost]:
    """Return the bytes of these clients in SecAgg or SecAgg+.

    words: values in the sum.
    last: number of the last stage before the sum ends or fails.
    """
    present = attendance.sets
    costs = {k: Cost() for k in clients if k in present[KEYS]}
    for k, cost in costs.items():
        peers = [graph.count(k, stage) for stage in present]
        cost.up[KEYS] = 2 * sizes.key
        cost.down[KEYS] = 2 * sizes.key * peers[KEYS]
        sealed = 2 * sizes.share + sizes.tag
        if last >= SHARES and k in present[SHARES]:
            cost.up[SHARES] = sealed * peers[KEYS]
            cost.down[SHARES] = sealed * peers[SHARES]
        if last >= INPUTS and k in present[INPUTS]:
            cost.up[INPUTS] = math.ceil(words * sizes.value)
            cost.down[INPUTS] = bytes_of_bits(1 + peers[KEYS])
        if last >= ANSWERS and k in present[ANSWERS]:
            cost.up[ANSWERS] = sizes.share * (1 + peers[SHARES])
    return costs


def coded_cost(
    attendance: Attendance,
    words: int,
    piece: int,
    clients: Iterable[int],
    last: int = ANSWERS,
    sizes: Sizes = Sizes(),
) -> dict[int, Cost]:
    """Return the bytes of these clients in LightSecAgg.

    piece: values in a share of a mask.
    """
    present = attendance.sets
    costs = {k: Cost() for k in clients if k in present[KEYS]}
    others = [len(stage) - 1 for stage in present]
    for k, cost in costs.items():
        cost.up[KEYS] = sizes.key
        cost.down[KEYS] = sizes.key * others[KEYS]
        sealed = int(piece * sizes.value) + sizes.tag
        if last >= SHARES and k in present[SHARES]:
            cost.up[SHARES] = sealed * others[KEYS]
            cost.down[SHARES] = sealed * others[SHARES]
        if last >= INPUTS and k in present[INPUTS]:
            cost.up[INPUTS] = int(words * sizes.value)
            cost.down[INPUTS] = bytes_of_bits(len(attendance.keys))
        if last >= ANSWERS and k in present[ANSWERS]:
            cost.up[ANSWERS] = int(piece * sizes.value)
    return costs


def add_pairwise_seconds(
    costs: Mapping[int, Cost],
    attendance: Attendance,
    graph: Graph,
    t: int,
    stream_bytes: float,
    speeds: Speeds,
) -> float:
    """Add the seconds of clients in SecAgg or SecAgg+ to their costs; return the server's.

    costs: of all clients. The sum does not fail.
    stream_bytes: of a mask.
    """
    present = attendance.sets
    stream = stream_bytes * speeds.byte
    factors = 2 * t * t * speeds.share_product  # of the shares of one set of clients
    server = factors if isinstance(graph, Complete) else 0.0
    join = t * speeds.share_product + (0.0 if isinstance(graph, Complete) else factors)
    for k, cost in costs.items():
        peers = [graph.count(k, stage) for stage in present]
        seconds = 0.0
        if k in present[SHARES]:
            seconds += 2 * peers[KEYS] * speeds.agreement
            seconds += 2 * (1 + peers[KEYS]) * t * speeds.share_product
        if k in present[INPUTS]:
            seconds += (1 + peers[SHARES]) * stream
            server += stream + join
        elif k in present[SHARES] and peers[INPUTS]:
            server += peers[INPUTS] * (speeds.agreement + stream) + join
        cost.seconds += seconds * speeds.slowdown
    return server


def add_coded_seconds(
    costs: Mapping[int, Cost],
    attendance: Attendance,
    survivors: int,
    piece: int,
    words: int,
    speeds: Speeds,
) -> float:
    """Add the seconds of clients in LightSecAgg to their costs; return the server's.

    costs: of all clients. The sum does not fail.
    survivors: shares by which the server decodes, which is also the number of pieces of a mask.
    """
    present = attendance.sets
    n = len(attendance.keys)
    for k, cost in costs.items():
        seconds = 0.0
        if k in present[SHARES]:
            seconds += (n - 1) * speeds.agreement + survivors * piece * WORD * speeds.byte
            seconds += field_seconds(n, survivors, piece, speeds)
            seconds += 2 * (n - 1) * piece * WORD * speeds.byte  # sealed and unsealed
        if k in present[INPUTS]:
            seconds += words * WORD * speeds.byte
        cost.seconds += seconds * speeds.slowdown
    return field_seconds(survivors, survivors, piece, speeds)


def field_seconds(rows: int, terms: int, columns: int, speeds: Speeds) -> float:
    """Return the seconds of a product of matrices, [rows, terms] times [terms, columns]."""
    products = rows * terms * columns * speeds.field_product
    return products + (rows + terms) * columns * speeds.field_value
