"""Device and network profiles: virtual seconds of the clients' computation and traffic.

Measured profiles follow Zhao et al. (Protea), FedEdge 2022, arXiv:2207.01053: a monitor records
what the work of each client takes in each round, and the simulation uses the estimate for a client.
This implementation is based on the abstract and a summary of the paper.
Deviations: of the quantities that Protea measures, only time is read. Protea also uses them to run
as many clients at once as the device's memory allows; here `run` does that with measured costs and
memory. Neither changes a result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcfed.clients.csv_lines import read_csv, read_each
from hpcfed.clients.traces import Trace
from hpcfed.config.system import System
from hpcfed.core import rng
from hpcfed.core.errors import DataError

MEASURED = ("client", "seconds", "examples")
HEADER = ("client", "speed", "bandwidth", "latency", "availability")
COLUMNS = HEADER[1:]


@dataclass(frozen=True)
class Profiles:
    """Profiles of all clients, as arrays [K]; pure arithmetic, the same bits on all ranks.

    speed: multiply-adds per second. With a trace, the speed at which each client began its present
    work (`follow`).
    bandwidth: bytes per second.
    latency: seconds of one exchange in addition to computation and transfer.
    availability: share of rounds or jobs in which the client is reachable, 0..1.
    example: multiply-adds of one example, forward and backward.
    trace: availability and speed over virtual time, or None.
    """

    speed: np.ndarray
    bandwidth: np.ndarray
    latency: np.ndarray
    availability: np.ndarray
    example: np.ndarray
    trace: Trace | None = None

    def follow(self, k: int, now: float) -> None:
        """Set the speed of client k to that of its trace at this time, for the work that begins."""
        line = self.trace.line(k, now) if self.trace else None
        if line is not None:
            self.speed[k] = self.trace.speed[line]  # type: ignore[union-attr]

    def available_from(self, k: int, now: float) -> float:
        """Return the first time from `now` on at which client k's trace has it available."""
        return self.trace.available_from(k, now) if self.trace else now

    def compute(self, k: int, examples: float) -> float:
        """Return the seconds of client k for the examples, forward and backward."""
        return quotient(float(examples) * float(self.example[k]), self.speed[k])

    def transfer(self, k: int, nbytes: float) -> float:
        """Return the seconds of a transfer to or from client k."""
        return quotient(nbytes, self.bandwidth[k])

    def seconds(self, k: int, examples: float, down: float, up: float) -> float:
        """Return the seconds of one exchange of client k: latency, download, work, then upload."""
        return (
            float(self.latency[k])
            + self.transfer(k, down)
            + self.compute(k, examples)
            + self.transfer(k, up)
        )

    def fit(self, k: int, seconds: float, down: float, up: float) -> float:
        """Return how many examples client k can process in an exchange of these seconds, >= 0."""
        left = seconds - self.seconds(k, 0, down, up)
        return max(0.0, left * quotient(self.speed[k], self.example[k]))


def quotient(amount: float, rate: float) -> float:
    """Return amount / rate, infinity for a rate of 0.

    A job may ask for a device so slow that its work never ends.
    """
    return float(amount) / float(rate) if rate else math.inf  # NumPy's numbers would warn


def draw(
    system: System, clients: int, seed: int, example: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return speed, bandwidth, latency and availability of all clients, by name.

    Each is drawn from a random stream of its own, or read from the file.
    example: [K], multiply-adds of one example, which convert measured seconds to speeds.
    Raises DataError for a file that cannot be used, as `read`.
    """
    if system.file is not None:
        return read(system.file, clients)
    with np.errstate(over="ignore", divide="ignore"):  # as `quotient`
        varied = {
            name: np.broadcast_to(
                getattr(system, name) * factors(system, clients, seed, name), clients
            )
            for name in COLUMNS[:-1]
        }
    if system.measured is not None and example is not None:
        seconds = read_measured(system.measured, clients)
        measured = ~np.isnan(seconds)
        varied["speed"] = varied["speed"].copy()
        varied["speed"][measured] = example[measured] / seconds[measured]
    return varied | {"availability": np.broadcast_to(float(system.availability), clients)}


def read_measured(path: Path, clients: int) -> np.ndarray:
    """Return the measured seconds per example of each client, [K].

    This is the sum of the seconds in the client's lines divided by the sum of their examples. It is
    nan for a client without lines, which has the speed of the median device.
    Raises DataError that names the wrong line and says why.
    """
    seconds, examples = np.zeros(clients), np.zeros(clients)
    for k, (took, number) in read_csv(path, MEASURED, "system.measured"):
        if not (0 <= k < clients and 0 < took < np.inf and 0 < number < np.inf):
            raise DataError(
                f"system.measured: {path}: '{k},{took:g},{number:g}': client must be "
                f"0..{clients - 1}, seconds and examples > 0"
            )
        seconds[k] += took
        examples[k] += number
    return np.divide(seconds, examples, out=np.full(clients, np.nan), where=examples > 0)


def factors(system: System, clients: int, seed: int, name: str) -> np.ndarray:
    """Draw the factor of each client relative to the median, [K]; its distribution has median 1.

    If clients do not differ, it is one factor for all, [1].
    """
    g = rng.stream(seed, "profiles", name)
    if system.distribution == "uniform":
        return g.uniform(1 - system.spread, 1 + system.spread, clients)
    return (
        np.exp(g.normal(0, system.spread, clients))
        if system.distribution == "lognormal"
        else np.ones(1)
    )


def read(path: Path, clients: int) -> dict[str, np.ndarray]:
    """Read the profiles of all clients from a file with one line for each, in any order.

    Raises DataError that names the wrong line and says why.
    """
    rows = read_each(path, HEADER, "system.file", clients)
    for k, values in enumerate(rows):
        speed, bandwidth, latency, availability = values
        if not (
            0 < speed < np.inf
            and 0 < bandwidth < np.inf
            and 0 <= latency < np.inf
            and 0 < availability <= 1
        ):
            raise DataError(
                f"system.file: {path}: client {k}: speed and bandwidth must be > 0, latency >= 0, "
                f"availability > 0 and <= 1, but they are {', '.join(f'{v:g}' for v in values)}"
            )
    return dict(zip(COLUMNS, np.array(rows).T.copy(), strict=True))
