"""Fed2: groups of features, each for some classes, are averaged over clients with those classes.

Yu et al. (Fed2: Feature-Aligned Federated Learning), KDD 2021, arXiv:2111.14248. Layers below the
decoupling depth are common. Convolutions and linear layers above it are divided into G groups that
are not connected with each other. The logit of a class reads the features of its group alone, so
that its gradient reaches no other group. GroupNorm replaces batch normalisation. H_g are the
clients of the cohort that hold examples of the classes of group g ("feature paired averaging"). A
group whose classes no client holds does not change. Class c belongs to group floor(c G / C). The
implementation is based on the abstract and on notes about the paper: no code is public, and its
numbers are not known here.

Objective: F_k(w)
Server: w_g <- sum_(k in H_g) p_k w_kg / sum_(k in H_g) p_k
Round:
1. The server sends its model, whose upper layers are groups, each for some classes.
2. Each client trains it.
3. It sends the common layers, and the groups of whose classes it has examples.
4. The server averages the common layers over all clients.
5. It averages each group over the clients that sent it, with the same weights.

Deviations: the paper finds the depth by the variance of features over classes; here it is a field.
A client holds a group if it has an example of one of its classes; which classes these are (C bits)
is not counted as traffic.
"""

from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from hpcfed import Client, Federation, Guide, Mean, Params, RoundBased, Upload
from hpcfed.algorithms.global_model.groups import class_groups, row_groups
from hpcfed.config.conditions import above, field
from hpcfed.core.params import Per
from hpcfed.models.variants import name_variant


class Fed2(RoundBased):
    """FedAvg with groups of features; groups = 1 is FedAvg, bit for bit."""

    guide = Guide(
        data="few classes per client",
        sent="all weights, upper layers by groups of classes",
        won="few classes per client: above FedAvg, FedMA and FedProx",
    )

    groups: PositiveInt = 4
    """G, number of groups of features; it divides all widths above the depth, and models.d."""
    depth: PositiveInt = field(1, used_if={"groups": above(1)})
    """Decoupling depth: number of convolutions and linear layers that are common; those above are
    in groups.
    """
    pairing: Literal["classes", "none"] = field("classes", used_if={"groups": above(1)})
    """Groups are averaged over the clients with examples of their classes, or over all clients."""

    @property
    def needs_classes(self) -> str:
        return "algorithm.pairing = 'classes' groups features by class" if self.paired else ""

    @property
    def variants(self) -> Any:
        return ("",) if self.groups == 1 else (name_variant("groups", self.groups, self.depth),)

    @property
    def paired(self) -> bool:
        """Whether a client may send only some of the groups."""
        return self.groups > 1 and self.pairing == "classes"

    def rows(self, fed: Federation, k: int) -> dict[str, np.ndarray]:
        """Return the rows that client k sends, by name of a tensor in the divided part."""
        if not self.paired:
            return {}
        mine = np.flatnonzero(fed.label_counts[k])
        groups = np.unique(class_groups(fed.classes, self.groups)[mine])
        of_rows = row_groups(fed.module(fed.architectures[k]).model)
        return {name: np.flatnonzero(np.isin(of, groups)) for name, of in of_rows.items()}

    @property
    def per(self) -> Per:
        return "row" if self.paired else "mean"

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        download = fed.down(client, state)
        self.receive(client, download)
        self.train(fed, client, download, t)
        rows = self.rows(fed, client.id)
        picked = {n: v[rows[n]] if n in rows else v for n, v in client.params(self.shared).items()}
        at = {name: (which,) for name, which in rows.items()}
        return Upload(Mean.of(Params(picked), self.weight(client), at))
