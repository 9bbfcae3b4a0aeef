"""A model in two places: clients send the features that their first layers make, the server's model
goes on.

A client's first layers are those up to its first ReLU (`hpcfed.models.model.stem`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hpcfed.clients.client import Paired
from hpcfed.core.params import Params
from hpcfed.models import MODELS
from hpcfed.models.model import stem
from hpcfed.training.batches import chunks
from hpcfed.training.infer import FORWARD, logits, outputs
from hpcfed.training.server import call, fit, parameters

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation
    from hpcfed.models.flat import Skeleton

Parcel = Mapping[str, Tensor]  # of one client: features [n, *H], logits [n, C], labels [n], int32


def refusal(job: Job) -> str | None:
    """Why the job's clients cannot send features, or None."""
    able = [name for name, entry in MODELS.items() if entry.stem]
    if unable := sorted(set(job.models.mix) - set(able)):
        return (
            f"needs clients whose first layers run apart, but models.mix has {', '.join(unable)}; "
            f"set models.mix to one of {', '.join(able)}"
        )
    return None


@torch.no_grad()
def shape(fed: Federation) -> torch.Size:
    """The shape of the features of one example, H."""
    body = fed.module(fed.architectures[0]).model.eval().body
    return stem(body)[0](torch.zeros(1, *fed.store.form[0], device=fed.device)).shape[1:]


def server(fed: Federation) -> Skeleton:
    """The server's module, which takes features."""
    return fed.module(fed.job.models.server, shape(fed))


def features(fed: Federation, client: Client) -> dict[str, Tensor]:
    """The client's features, logits and labels of all its training examples, in eval mode; counted
    as its work.
    """
    own = logits(fed, client, client.train)
    fed.tallies[client.id].work += FORWARD * client.n
    made = outputs(fed, stem(client.model.eval().body)[0], client.train)
    return {
        "features": made,
        "logits": own,
        "labels": torch.from_numpy(client.train.labels).to(own.device).int(),
    }


def distillation_data(client: Client, name: str) -> Shard:
    """The client's training examples, with their labels alone, or beside them the logits that its
    memory has.
    """
    known = client.memory.get(name)
    return client.train if known is None else Paired(client.train, known, with_labels=True)


def predict(fed: Federation, client: Client, state: Params, x: Tensor) -> Tensor:
    """Logits [n, C] of the server's model with these parameters on the client's features of
    prepared inputs.
    """
    skeleton = server(fed)
    skeleton.model.eval()
    return call(skeleton, state, stem(client.model.body)[0](x))


def learn(
    fed: Federation,
    state: Params,
    sent: Mapping[int, Parcel],
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    t: int,
    **how: Any,
) -> Params:
    """The server's model after training on all that was sent; on rank 0.

    loss: (the model's logits, the clients', labels) -> scalar.  how: as `fit` takes it.
    """
    x, own, labels = (
        torch.cat([p[part] for p in sent.values()]) for part in ("features", "logits", "labels")
    )
    skeleton = server(fed)
    skeleton.model.train()

    def objective(params: Params, rows: Tensor) -> Tensor:
        return loss(call(skeleton, params, x[rows]), own[rows], labels[rows].long())

    trained = parameters(skeleton)
    return fit(fed, state, objective, torch.from_numpy, len(x), "server", t, trained=trained, **how)


@torch.no_grad()
def answers(fed: Federation, state: Params, parcel: Parcel) -> Tensor:
    """The server's logits of one client's examples, [n, C], in eval mode."""
    skeleton = server(fed)
    skeleton.model.eval()
    parts: list[np.ndarray] = chunks(fed, len(parcel["features"]))
    return torch.cat(
        [call(skeleton, state, parcel["features"][torch.from_numpy(rows)]) for rows in parts]
    )
