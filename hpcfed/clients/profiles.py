"""The clients' devices and network: what work and traffic take them in virtual seconds.

Measured profiles follow Zhao et al. (Protea), FedEdge 2022, arXiv:2207.01053: a monitor notes for
each client and round what its work took, and the estimate of a client stands for it in simulation.
Rests on the abstract and a summary of the paper. Deviations: of what Protea measures only time is
read. Its other use, to run as many clients at once as the device's memory holds, is what `run`
does here with measured costs and memory; neither changes a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcfed.clients.csv_lines import read_csv
from hpcfed.clients.traces import Trace
from hpcfed.config.system import System
from hpcfed.core import rng
from hpcfed.core.errors import DataError

MEASURED = ("client", "seconds", "examples")
HEADER = ("client", "speed", "bandwidth", "latency", "availability")
COLUMNS = HEADER[1:]


@dataclass(frozen=True)
class Profiles:
    """Arrays [K]; pure arithmetic, the same bits on all ranks.

    trace: with one, speeds are those at which clients began their present work (`follow`).

    speed: multiply-adds per second.  bandwidth: bytes per second.  latency: seconds of one exchange
    beside its bytes.  availability: share of rounds or jobs, 0..1.  example: multiply-adds of one
    example, forward and backward.
    """

    speed: np.ndarray
    bandwidth: np.ndarray
    latency: np.ndarray
    availability: np.ndarray
    example: np.ndarray
    trace: Trace | None = None

    def follow(self, k: int, now: float) -> None:
        """Give client k the speed that its trace has at this time, for the work that begins."""
        line = self.trace.line(k, now) if self.trace else None
        if line is not None:
            self.speed[k] = self.trace.speed[line]  # type: ignore[union-attr]

    def available_from(self, k: int, now: float) -> float:
        """The first time from now on at which client k can be reached, as its trace has it."""
        return self.trace.available_from(k, now) if self.trace else now

    def compute(self, k: int, examples: float) -> float:
        """Seconds that client k takes for so many examples, forward and backward."""
        with infinite_times():
            return float(examples * self.example[k] / self.speed[k])

    def transfer(self, k: int, nbytes: float) -> float:
        """Seconds that so many bytes take to or from client k."""
        with infinite_times():
            return float(nbytes / self.bandwidth[k])

    def seconds(self, k: int, examples: float, down: float, up: float) -> float:
        """One exchange of client k: latency, download, work, upload, one after the other."""
        return (
            float(self.latency[k])
            + self.transfer(k, down)
            + self.compute(k, examples)
            + self.transfer(k, up)
        )

    def fit(self, k: int, seconds: float, down: float, up: float) -> float:
        """Examples that client k works through in an exchange of so many seconds, >= 0."""
        left = seconds - self.seconds(k, 0, down, up)
        with infinite_times():
            return max(0.0, left * float(self.speed[k] / self.example[k]))


def infinite_times() -> np.errstate:
    """Inside, what is beyond all numbers is infinite, and numpy does not warn of it: a job may ask
    for a device that never comes to its end.
    """
    return np.errstate(over="ignore", divide="ignore")


def draw(
    system: System, clients: int, seed: int, example: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Speed, bandwidth, latency and availability of all clients, by name.

    Drawn from one stream for each of them, or read from the file; raises DataError as `read`.
    example: [K], multiply-adds of one example, with which measured seconds become speeds.
    """
    if system.file is not None:
        return read(system.file, clients)
    with infinite_times():
        varied = {
            name: getattr(system, name) * factors(system, clients, seed, name)
            for name in COLUMNS[:-1]
        }
    if system.measured is not None and example is not None:
        seconds = read_measured(system.measured, clients)
        known = ~np.isnan(seconds)
        varied["speed"][known] = example[known] / seconds[known]
    return varied | {"availability": np.full(clients, system.availability)}


def read_measured(path: Path, clients: int) -> np.ndarray:
    """Seconds of one example of each client, [K]: all seconds of its lines over all examples of
    theirs; nan for a client without lines, which is as fast as the median device.

    Raises DataError with the line that is wrong, and why.
    """
    seconds, examples = np.zeros(clients), np.zeros(clients)
    for line in read_csv(path, MEASURED, "system.measured"):
        try:
            k, took, number = int(line[0]), *map(float, line[1:])
        except ValueError as error:
            raise DataError(
                f"system.measured: {path}: {','.join(line)!r}: write {','.join(MEASURED)} as "
                f"numbers"
            ) from error
        if not (0 <= k < clients and 0 < took < np.inf and 0 < number < np.inf):
            raise DataError(
                f"system.measured: {path}: {','.join(line)!r}: client must be 0..{clients - 1}, "
                f"seconds and examples > 0"
            )
        seconds[k] += took
        examples[k] += number
    return np.divide(seconds, examples, out=np.full(clients, np.nan), where=examples > 0)


def factors(system: System, clients: int, seed: int, name: str) -> np.ndarray:
    """How much more than the median each client has, [K]; the median of the distribution is 1."""
    g = rng.stream(seed, "profiles", name)
    if system.distribution == "uniform":
        return g.uniform(1 - system.spread, 1 + system.spread, clients)
    return (
        np.exp(g.normal(0, system.spread, clients))
        if system.distribution == "lognormal"
        else np.ones(clients)
    )


def read(path: Path, clients: int) -> dict[str, np.ndarray]:
    """A file with one line for each client, in any order.

    DataError with the line that is wrong, and why.
    """
    lines = read_csv(path, HEADER, "system.file")
    rows = dict(parse(path, line) for line in lines)
    if len(rows) < len(lines) or sorted(rows) != list(range(clients)):
        raise DataError(
            f"system.file: {path}: has {len(lines)} lines for {clients} clients; "
            f"give one line for each of the clients 0..{clients - 1}"
        )
    return dict(zip(COLUMNS, np.array([rows[k] for k in range(clients)]).T.copy(), strict=True))


def parse(path: Path, line: Sequence[str]) -> tuple[int, list[float]]:
    """A client's number, and its speed, bandwidth, latency and availability."""
    try:
        k, values = int(line[0]), [float(word) for word in line[1:]]
        speed, bandwidth, latency, availability = values
    except ValueError as error:
        raise DataError(
            f"system.file: {path}: {','.join(line)!r}: write {','.join(HEADER)} as numbers"
        ) from error
    if not (
        0 < speed < np.inf
        and 0 < bandwidth < np.inf
        and 0 <= latency < np.inf
        and 0 < availability <= 1
    ):
        raise DataError(
            f"system.file: {path}: client {k}: speed and bandwidth must be > 0, latency >= 0, "
            f"availability > 0 and <= 1, but they are {', '.join(line[1:])}"
        )
    return k, values
