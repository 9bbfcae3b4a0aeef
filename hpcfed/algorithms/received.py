"""What the server has received last from each client, for methods whose server remembers it.

It is in the client's memory, so that it moves and is saved with the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hpcfed.core.params import Params

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.federation.federation import Federation


def remember(fed: Federation, uploads: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    """Remember the parts of these uploads, pairs of this rank's clients: (client id, parts)."""
    for k, parts in uploads:
        fed.clients[k].memory |= {f"received {name}": part for name, part in parts.items()}


def model(client: Client) -> Params:
    """Return the model that the server has received last from a client; it is empty before one."""
    return Params(client.recall("received model") or {})


def models(fed: Federation) -> dict[int, Params]:
    """Return the last models of this rank's clients that have sent one."""
    last = {client.id: model(client) for client in fed.mine(range(fed.K))}
    return {k: value for k, value in last.items() if value}
