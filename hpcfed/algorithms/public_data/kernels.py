"""The mean of all clients' kernels on common examples: what heterogeneous FedHeNN draws its clients
to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from hpcfed.core.params import Mean, Params
from hpcfed.training import similarity
from hpcfed.training.infer import outputs, represent

if TYPE_CHECKING:
    from hpcfed.clients.client import Client, Shard
    from hpcfed.federation.federation import Federation

STRIP = 256  # rows of the kernels that are averaged at a time, at most,
MEMORY = 1 << 28  # and as few as fit into so many bytes for all clients together
BYTES = 4  # of a float32


class Settings(Protocol):
    """What a method says of the mean."""

    setting: Literal["heterogeneous", "homogeneous"]  # homogeneous: there is none
    eta0: float  # 0: none either
    rad_size: int
    kernel: Literal["linear", "rbf"]
    bandwidth: float
    client_weights: Literal["uniform", "samples", "capacity"]
    kernel_norm: Literal["none", "frobenius"]
    upload: Literal["model", "representations", "kernel"]


@dataclass(frozen=True)
class Kernel:
    """The kernel of a representation z [L, d], factor * k(z_p, z_q), of which only strips are in
    memory.

    precision: 1 / (2 sigma^2) of an RBF kernel; None: linear.
    """

    z: Tensor
    precision: Tensor | None = None
    factor: Tensor | float = 1.0

    @classmethod
    def of(cls, z: Tensor, how: Settings) -> Kernel:
        """The kernel of that kind, with kernel_norm = "frobenius" such that its centred form has
        length 1.

        One that is constant up to rounding becomes 0: scaled, that rounding would count as much as
        the others.
        """
        rbf = how.kernel == "rbf"
        made = cls(
            z,
            similarity.precision(similarity.squared_distances(z, z), how.bandwidth)
            if rbf
            else None,
        )
        if how.kernel_norm == "none":
            return made
        whole = made.rows(0, len(z))
        length = similarity.length(similarity.centre_kernel(whole), whole).to(z.dtype)
        return cls(z, made.precision, torch.where(length == 0, 0.0, 1 / length))

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows start..stop-1 from the diagonal on, [stop - start, L - start]."""
        few, rest = self.z[start:stop], self.z[start:]
        if self.precision is None:
            return self.factor * (few @ rest.T)
        return self.factor * torch.exp(-self.precision * similarity.squared_distances(few, rest))


def mean_of_clients(
    fed: Federation, rad: Shard, cohort: list[int], members: list[int], how: Settings
) -> Tensor | None:
    """The mean kernel of the round, made ready as a target, [L, L]; None where the method has none
    or nobody is in it; collective.

    members: the clients whose kernels are averaged. They stand in it with the models that they have
    at the start of the round, in the cohort or not; what is sent for it is counted: by the cohort
    where the server computes kernels from models, by the members where they do.  Makhija et al.,
    ICML 2022, algorithm 2.
    """
    if how.setting != "heterogeneous" or not how.eta0:
        return None
    at_server = how.upload == "model"  # which then computes what else clients do: no work of theirs
    kernels, weights = {}, {}

    def represented(client: Client) -> tuple[Tensor, float, int]:
        z = (
            outputs(fed, client.model.eval().body, rad)
            if at_server
            else represent(fed, client, rad)
        )
        return (
            z,
            weight(client, how),
            upload_bytes(client.skeleton.items(lambda name: True), len(rad), how),
        )

    for k, (z, own, size) in fed.stream(members, represented):
        kernels[k], weights[k] = Kernel.of(z, how), own
        fed.exchange.upload(k, {"representation": z}, 0 if at_server else size)
    for client in fed.mine(cohort) if at_server else ():
        fed.exchange.upload(client.id, {}, upload_bytes(fed.shapes(k=client.id), len(rad), how))
    return similarity.normalise_kernel(mean(fed, kernels, weights, len(rad))) if members else None


def weight(client: Client, how: Settings) -> float:
    """The client's weight in the mean kernel."""
    capacity = client.skeleton.layout.n_params
    return float({"uniform": 1, "samples": client.n, "capacity": capacity}[how.client_weights])


def mean(
    fed: Federation, kernels: Mapping[int, Kernel], weights: Mapping[int, float], size: int
) -> Tensor:
    """The exact weighted mean of all clients' kernels, [L, L], symmetric; collective, nothing is
    counted.

    kernels, weights: of this rank's clients, by id.  size: L.
    """
    whole = torch.zeros(size, size, device=fed.device)
    strip = max(
        1, min(STRIP, MEMORY // (BYTES * size * fed.K))
    )  # of all clients, so that all ranks agree
    for start in range(0, size, strip):
        stop = min(start + strip, size)
        parts = (
            (k, Mean.of(Params(kernel=v.rows(start, stop)), weights[k])) for k, v in kernels.items()
        )
        keep = Params(kernel=whole[start:stop, start:])
        whole[start:stop, start:] = fed.mean(parts, keep=keep, counted=False)["kernel"]
    return whole.triu() + whole.triu(1).T


def traffic(fed: Federation, k: int, how: Settings) -> tuple[int, int]:
    """Bytes that client k of the cohort receives, the mean kernel, and sends."""
    if not how.eta0:
        return 0, 0
    size = min(how.rad_size, len(fed.public))
    return BYTES * size**2, upload_bytes(fed.shapes(k=k), size, how)


def upload_bytes(model: Params, size: int, how: Settings) -> int:
    """Bytes of what a client sends: its model, or its representations [L, d], or the half of its
    kernel [L, L].
    """
    if how.upload == "kernel":
        return BYTES * size * (size + 1) // 2
    return model.nbytes if how.upload == "model" else BYTES * size * model["head.weight"].shape[1]
