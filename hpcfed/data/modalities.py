"""Modalities of each client, and wrong or missing labels.

Feng et al. (FedMultimodal), KDD 2023, arXiv:2306.09486, section 4.3.
Deviations: a client that would lack all its modalities in training keeps one, drawn at random;
theirs is left out of the run. A wrong label is any other class, all equally likely; theirs exclude
some pairs of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hpcfed.config.sections import Modalities
from hpcfed.core.errors import ConfigError
from hpcfed.core.rng import stream
from hpcfed.data.dataset import DataSet, Split
from hpcfed.data.partition_file import Partition

Set = tuple[str, ...]  # modalities of one client, in the order of the data set


class Held(NamedTuple):
    """Modalities of each client, and those of them that its training examples have."""

    clients: tuple[Set, ...]
    train: tuple[Set, ...]


def select(data: DataSet, settings: Modalities) -> DataSet:
    """Return the data with the modalities that the job uses.

    Raises ConfigError for a modality that the data do not have.
    """
    return data.only(settings.use) if settings.use else data


def assign(
    names: Set, settings: Modalities, clients: int, seed: int, natural: Callable[[int], Set]
) -> Held:
    """Assign modalities to clients, the same on any number of ranks.

    names: those of the data.
    natural: returns those that client k's own examples have.
    Raises ConfigError for a set that names others, and for a natural client that has none.
    """
    options = [parse(text, names) for text in settings.sets]
    weight = np.array(settings.shares or [1.0] * len(options))

    def one(k: int) -> Set:
        if settings.clients == "listed":
            return options[k % len(options)]
        if settings.clients == "natural":
            if not (modalities := natural(k)):
                raise ConfigError(
                    f"client {k} has none of {', '.join(names)} in its training examples; use "
                    f"more modalities (modalities.use), or leave its users out"
                )
            return modalities
        if settings.clients == "all":
            return names
        g = stream(seed, "modalities", k)
        return (
            options[g.choice(len(options), p=weight / weight.sum())]
            if options
            else some(names, settings.rate, g)
        )

    of_clients = tuple(map(one, range(clients)))
    if not settings.missing:
        return Held(of_clients, of_clients)
    left = 1 - settings.missing
    return Held(
        of_clients,
        tuple(
            some(modalities, left, stream(seed, "missing", k))
            for k, modalities in enumerate(of_clients)
        ),
    )


def some(names: Set, rate: float, g: np.random.Generator) -> Set:
    """Draw each name with probability `rate`; if none is drawn, draw one of them."""
    chosen = tuple(
        name for name, draw in zip(names, g.random(len(names)), strict=True) if draw < rate
    )
    return chosen or (names[g.integers(len(names))],)


def parse(text: str, names: Set) -> Set:
    """Return a set from the job's form, "accelerometer+skeleton", in the order of the data.

    Raises ConfigError for a modality that the data do not have.
    """
    wanted = {part.strip() for part in text.split("+")}
    for name in sorted(wanted):
        if name not in names:
            raise ConfigError(
                f"modalities.sets: {text!r} names {name!r}, but the data have {', '.join(names)}"
            )
    return tuple(name for name in names if name in wanted)


def present(split: Split, rows: np.ndarray) -> Set:
    """Return the modalities that some of these examples have."""
    return tuple(
        name for name in split.x if name not in split.present or split.present[name][rows].any()
    )


def mislabel(
    y: np.ndarray, partition: Partition, share: float, classes: int, seed: int
) -> np.ndarray:
    """Return training labels of which a random share of each client's is another class.

    y: [n], not changed. Public examples keep their labels.
    Returns [n].
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
    """Return the clients' examples without a random share of each, which has no label.

    Each client keeps at least one.
    """
    remaining = []
    for k, rows in enumerate(parts):
        draws = g(k).random(len(rows))
        keep = draws >= share
        keep[draws.argmax()] = True
        remaining.append(rows[keep])
    return remaining


def check_idle(data: DataSet, settings: Modalities) -> None:
    """Raise ConfigError for a setting of modalities if inputs are of one kind."""
    usual = type(settings)()
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if value != getattr(usual, name) and not data.modalities:
            raise ConfigError(
                f"modalities.{name} = {value!r} has no effect: {data.name} has inputs of one kind; "
                f"remove it, or take data with several"
            )
