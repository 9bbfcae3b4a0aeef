"""The networks of single modalities within a fused model: an encoder each, and the classifier."""

from collections.abc import Callable
from typing import Any

from hpcfed import Federation

ALL = "all"  # name of the modality of inputs of one kind


def modalities(fed: Federation, k: int) -> tuple[str, ...]:
    """Return the modalities of a client's training examples; ("all",) for inputs of one kind."""
    return fed.modalities[k] or (ALL,)


def all_modalities(fed: Federation) -> list[str]:
    return sorted({m for k in range(fed.K) for m in modalities(fed, k)})


def only(x: Any, names: tuple[str, ...]) -> Any:
    """Return inputs reduced to these modalities."""
    return x if names == (ALL,) else {m: x[m] for m in names}


def phase(fed: Federation, m: str) -> str:
    """Return the name of the random streams of a modality's training.

    The first modality has FedAvg's streams.
    """
    return "train" if m == all_modalities(fed)[0] else f"train {m}"


def in_classifier(name: str) -> bool:
    return not name.startswith("body.encoders.")


def in_network(m: str) -> Callable[[str], bool]:
    """Return a test for the names of tensors: whether a tensor belongs to a modality's network.

    The network consists of the modality's encoder and the classifier.
    """
    return lambda name: m == ALL or in_classifier(name) or name.startswith(f"body.encoders.{m}.")


def encoder_of(m: str, trainable: Callable[[str], bool]) -> Callable[[str], bool]:
    """Return a test for names: whether a tensor is a parameter of a modality's encoder."""
    return lambda name: name.startswith(f"body.encoders.{m}.") and trainable(name)
