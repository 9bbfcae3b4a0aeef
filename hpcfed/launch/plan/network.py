"""Seconds of a message between two ranks: Hockney's model of latency and bandwidth.

Both are given as in a data sheet.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hpcfed.comm.sum_messages import EAGER
from hpcfed.core.errors import ConfigError

ANNOUNCED = 3  # latencies of a message longer than EAGER, which needs a handshake
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
BYTES = {
    f"{prefix}{unit}/s": PREFIXES[prefix] * size
    for prefix in PREFIXES
    for unit, size in (("B", 1), ("b", 1 / 8))
}
NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s*([a-zA-Z/]+)")


@dataclass(frozen=True)
class Network:
    """The latency and bandwidth of a network.

    latency: seconds of a message without bytes.
    bandwidth: bytes per second, each way.
    Hockney, Parallel Computing 20 (1994) 389-398.
    """

    latency: float
    bandwidth: float

    def message(self, nbytes: float, sharing: int = 1) -> float:
        """Return the seconds of one message.

        sharing: the number of ranks that send as much at once through the same connection.
        """
        return (
            self.latency * (1 if nbytes <= EAGER else ANNOUNCED) + sharing * nbytes / self.bandwidth
        )


def network(text: str) -> Network:
    """Return the network that a text describes, such as `latency 2us, 100Gb/s`.

    The latency is in s, ms, us or ns, the bandwidth in bits (b/s) or bytes (B/s) with k, M, G or T.
    Raises ConfigError for anything else.
    """
    parts = [
        part.strip().removeprefix("latency").removeprefix("bandwidth") for part in text.split(",")
    ]
    if len(parts) != 2:
        raise ConfigError(
            f"--network {text!r}: give latency and bandwidth, as in 'latency 2us, 100Gb/s'"
        )
    option = f"--network {text!r}"
    return Network(
        quantity(parts[0], SECONDS, option, least=0.0), quantity(parts[1], BYTES, option)
    )


def disk(text: str) -> tuple[float, float]:
    """Return the bytes per second that one node and all nodes together write.

    text: `2GB/s`, or `2GB/s, 20GB/s`; without a second number there is no limit for all nodes.
    Raises ConfigError for anything else.
    """
    one, *all_ = (quantity(part, BYTES, f"--disk {text!r}") for part in text.split(",", 1))
    return one, all_[0] if all_ else math.inf


def quantity(part: str, units: dict[str, float], option: str, least: float = 1.0) -> float:
    """Return a number with its unit.

    Raises ConfigError if it has none of these units, or is too small.
    option: the option that gives it, for the message.
    """
    found = NUMBER.fullmatch(part.strip())
    value = float(found[1]) * units[found[2]] if found and found[2] in units else -1.0
    if value < least:
        raise ConfigError(
            f"{option}: {part.strip()!r} is no number with one of the units {', '.join(units)}"
        )
    return value
