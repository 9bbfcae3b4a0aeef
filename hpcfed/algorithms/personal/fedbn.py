"""FedBN: clients share all layers but those of batch normalisation, which stay with each client.

Li et al., ICLR 2021, arXiv:2102.07623, algorithm 1. s_k are the tensors of the layers of batch
normalisation, their scales, shifts, means and variances; w_k are all others.

Objective: F_k(w, s_k)
Server: w <- mean_k w_k
Round:
1. The server sends w to the cohort.
2. Each client trains it together with its own s_k.
3. It sends w_k; s_k stays.
4. The server takes the mean of w_k.

Deviations: layers are recognised by their type. The authors' code goes by "bn" in their names,
which those of the shortcuts of ResNets do not have. A client that has never trained has the initial
s_k.
"""

from typing import ClassVar, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload

BATCH = (_BatchNorm,)
ALL = (*BATCH, nn.GroupNorm, nn.LayerNorm)


class FedBN(RoundBased):
    """Without layers of normalisation it is FedAvg with equal weights, bit for bit."""

    guide = Guide(
        data="of the same classes in different domains",
        sent="all weights but those of batch normalisation",
        won="digits of five domains, photographs, brain scans: above FedAvg and FedProx",
    )

    keeps_weights: ClassVar[bool | None] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    """Weight of a client in the mean: 1, or its number of training examples."""
    norms: Literal["batch", "all"] = "batch"
    """Layers that stay: batch normalisation, or also group and layer normalisation."""

    def init(self, fed: Federation) -> Params:
        architecture = fed.architectures[0]
        modules = fed.module(architecture).model.named_modules()
        types = BATCH if self.norms == "batch" else ALL
        layers = {name for name, module in modules if isinstance(module, types)}
        if not layers:
            what = "batch normalisation" if self.norms == "batch" else "normalisation"
            fed.warnings.say(
                f"{architecture} has no layers of {what}, so that nothing stays with "
                f"clients, and fedbn is fedavg"
            )
        return fed.initial(lambda name: name.rpartition(".")[0] not in layers)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        self.train(fed, client, download, t)
        sent = client.params(download.__contains__)
        return Upload(Mean.of(sent, self.weight(client)), relative_to=download)

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Return nothing: the server has no complete model."""
        return {}
