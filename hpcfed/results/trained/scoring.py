"""The parts that make a client's prediction: its model alone, or with additions of its method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from hpcfed.algorithms.base import Method, State
from hpcfed.algorithms.proxies import fedgkt
from hpcfed.algorithms.public_data import fedktl
from hpcfed.core.architecture import Architecture
from hpcfed.core.errors import ConfigError
from hpcfed.models.finetuning import plain_state
from hpcfed.models.model import Pair

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation

Tensors = dict[str, Tensor]
OF_NOW = (
    "prototypes",
    "served",
)  # kinds in which the server's state has a part, which changes without the client


class Pieces(NamedTuple):
    """The parts of a `Trained`. kind, more: as in its `About`."""

    architecture: str
    tensors: Tensors
    kind: str = "logits"
    more: dict[str, Any] = {}  # noqa: RUF012, never changed


def pieces(fed: Federation, client: Client, method: Method, state: State) -> Pieces:
    """Return copies of all parts that make the client's prediction.

    Its model is changed as it is for an evaluation. Raises ConfigError for a method with a
    `predictor` of its own that is not supported here.
    """
    name = fed.job.algorithm.name
    if name in OWN:
        return OWN[name](fed, client, method, state)
    if method.predictor(fed, client, state) is not client.model:
        raise ConfigError(
            f"{name} predicts in its own way (`predictor`), so that a client's model alone "
            "does not say what was evaluated; its clients' models cannot be exported"
        )
    return alone(client)


def alone(client: Client) -> Pieces:
    """Return the client's model; of a pair its own one."""
    model, architecture = client.model, client.architecture
    if isinstance(model, Pair):
        model, architecture = model.own, str(Architecture.parse(architecture).own)
    return Pieces(architecture, copies("model", model))


def copies(prefix: str, module: nn.Module, other: Tensors | None = None) -> Tensors:
    """Return copies of a module's tensors by name. other: tensors that replace its own."""
    tensors = {**plain_state(module), **(other or {})}
    return {f"{prefix}.{name}": value.detach().clone() for name, value in tensors.items()}


def one_of_two(fed: Federation, client: Client, method: Any, state: State) -> Pieces:
    """Return the client's own model, or the common one, for FML, FedKD and FedKEMF."""
    if method.inference == "own":
        return alone(client)
    _, proxy = Architecture.parse(client.architecture).parts
    return Pieces(str(proxy), copies("model", client.model.proxy))  # type: ignore[arg-type]


def of_known_classes(fed: Federation, client: Client, method: Any, state: State) -> Pieces:
    """Return a HeteroFL client's model, which has no logits for classes without examples."""
    present = np.flatnonzero(fed.label_counts[client.id])
    return alone(client)._replace(
        kind="masked", more={"present": present.tolist(), "mask": method.mask}
    )


def by_frame(fed: Federation, client: Client, method: Any, state: State) -> Pieces:
    """Return a FedKTL client's model, and the frame that gives the class."""
    parts, directions = alone(client), fedktl.frame(fed.seed, fed.classes)
    tensors = {**parts.tensors, "frame": directions.clone()}
    return parts._replace(tensors=tensors, kind="framed", more={"scale": method.scale})


def by_prototypes(fed: Federation, client: Client, method: Any, state: State) -> Pieces:
    """Return a client's model and the global prototypes, of which the nearest gives the class."""
    parts, proto = alone(client), method.model(state)["proto"]
    if method.inference == "head" or proto.isnan().all():
        return parts
    return parts._replace(tensors={**parts.tensors, "prototypes": proto.clone()}, kind="prototypes")


def with_server(fed: Federation, client: Client, method: Any, state: State) -> Pieces:
    """Return a FedGKT client's model, and the server's model on the client's features."""
    parts = alone(client)
    if method.evaluate == "client":
        return parts
    server = copies("server", fedgkt.server_module(fed).model, dict(state))
    more = {"server": fed.job.models.server, "shape": list(fedgkt.feature_shape(fed))}
    return parts._replace(tensors={**parts.tensors, **server}, kind="served", more=more)


OWN: dict[str, Callable[..., Pieces]] = {
    "fml": one_of_two,
    "fedkd": one_of_two,
    "fedkemf": one_of_two,
    "heterofl": of_known_classes,
    "fedktl": by_frame,
    "fedproto": by_prototypes,
    "fedtgp": by_prototypes,
    "fedorgp": by_prototypes,
    "fedgkt": with_server,
}
