"""Which client has which modalities, of data with several; and labels that are wrong or missing.

As Feng et al. (FedMultimodal), KDD 2023, arXiv:2306.09486, section 4.3, simulate them.
Deviations: a client that would lack all its modalities in training keeps one, drawn; theirs is left
out of the run. A wrong label is any other class, each as likely; theirs leave out some pairs of
classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hpcfed.core.errors import ConfigError
from hpcfed.core.rng import stream
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.partition_file import Partition

Set = tuple[str, ...]  # modalities of one client, in the order of the data set


class Settings(Protocol):
    """The fields of a job's modalities part that are read here."""

    use: tuple[str, ...]
    clients: str
    rate: float
    sets: tuple[str, ...]
    shares: tuple[float, ...]
    missing: float


class Held(NamedTuple):
    """The modalities of each client, and of these those that its training examples have."""

    own: tuple[Set, ...]
    train: tuple[Set, ...]


def select(data: DataSet, settings: Settings) -> DataSet:
    """The data with the modalities that the job uses. ConfigError for what the data do not have."""
    return data.only(settings.use) if settings.use else data


def assign(
    names: Set, settings: Settings, clients: int, seed: int, natural: Callable[[int], Set]
) -> Held:
    """Which client has which, the same on any number of ranks.

    names: those of the data.  natural: those that client k's own examples have.
    Raises ConfigError for a set that names others, and for a natural client that has none.
    """
    options = [parse(text, names) for text in settings.sets]
    weight = np.array(settings.shares or [1.0] * len(options))

    def one(k: int) -> Set:
        if settings.clients == "listed":
            return options[k % len(options)]
        if settings.clients == "natural":
            if not (own := natural(k)):
                raise ConfigError(
                    f"client {k} has none of {', '.join(names)} in its training examples; use "
                    f"more modalities (modalities.use), or leave its users out"
                )
            return own
        if settings.clients == "all":
            return names
        g = stream(seed, "modalities", k)
        return (
            options[g.choice(len(options), p=weight / weight.sum())]
            if options
            else some(names, settings.rate, g)
        )

    own = tuple(map(one, range(clients)))
    if not settings.missing:
        return Held(own, own)
    left = 1 - settings.missing
    return Held(
        own,
        tuple(some(held, left, stream(seed, "missing", k)) for k, held in enumerate(own)),
    )


def some(names: Set, rate: float, g: np.random.Generator) -> Set:
    """Each of these with probability `rate`; where that is none, one of them."""
    kept = tuple(
        name for name, draw in zip(names, g.random(len(names)), strict=True) if draw < rate
    )
    return kept or (names[g.integers(len(names))],)


def parse(text: str, names: Set) -> Set:
    """A set as a job has it, "accelerometer+skeleton", in the order of the data."""
    wanted = {part.strip() for part in text.split("+")}
    for name in sorted(wanted):
        if name not in names:
            raise ConfigError(
                f"modalities.sets: {text!r} names {name!r}, but the data have {', '.join(names)}"
            )
    return tuple(name for name in names if name in wanted)


def present(split: Split, rows: np.ndarray) -> Set:
    """The modalities that some of these examples have."""
    return tuple(
        name for name in split.x if name not in split.present or split.present[name][rows].any()
    )


def mislabel(
    y: np.ndarray, partition: Partition, share: float, classes: int, seed: int
) -> np.ndarray:
    """Training labels, of which this share of each client's, drawn, is another class.

    Public examples keep theirs.

    y: [n], not changed.  Returns [n].
    """
    wrong = y.copy()
    for k, rows in enumerate(partition.train):
        g = stream(seed, "wrong labels", k)
        chosen = rows[g.random(len(rows)) < share]
        wrong[chosen] = (y[chosen] + g.integers(1, max(2, classes), len(chosen))) % classes
    return wrong


def labelled(
    parts: Sequence[np.ndarray], share: float, g: Callable[[int], np.random.Generator]
) -> list[np.ndarray]:
    """The clients' examples without this share of each one's, drawn, which has no label.

    At least one is left.
    """
    kept = []
    for k, rows in enumerate(parts):
        draws = g(k).random(len(rows))
        keep = draws >= share
        keep[draws.argmax()] = True
        kept.append(rows[keep])
    return kept


def check_idle(data: DataSet, settings: Settings) -> None:
    """ConfigError where a job says something of modalities, and inputs are of one kind."""
    usual = type(settings)()
    for name in (*Settings.__annotations__, "encoders"):
        value = getattr(settings, name)
        if value != getattr(usual, name) and not data.modalities:
            raise ConfigError(
                f"modalities.{name} = {value!r} has no effect: {data.name} has inputs of one kind; "
                f"leave it away, or take data with several"
            )
