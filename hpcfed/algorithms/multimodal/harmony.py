"""Harmony: clients train one network per modality, then fuse modalities within clusters of clients.

Ouyang et al., MobiSys 2023, doi:10.1145/3581791.3596844.

w_(k,i) is client k's network of modality i (eqs. 6 and 7): the fused model that gets only this
modality. f_(k,i) is its encoder, and f_i that of the mean network, from which stage 2 starts. h_k
is the classifier, everything but the encoders. d_(k,i) compares parameters (eq. 9). Before K-means,
anew in each round, they are divided by their maximum over clients for each modality.

Objective: F_k(w_(k,i)), then F_k(f_k, h_k)
Server: w_i <- sum_(k has i) p_k w_(k,i), then d_(k,i) = 1 - cos(f_(k,i), f_i); h_m <- sum_(k in m)
    p_k h_k
Round:
1. Stage 1: a client trains and sends one network for each modality that it has.
2. The server averages the networks of each modality over the clients that have it.
3. Stage 2: clients with several modalities train a fused model; their encoders stay with them.
4. They send h_k and how far each encoder has moved, d_(k,i), by which K-means groups them.
5. The server sends the members of each group m the mean h_m of their classifiers.

Deviations: means are weighted by examples, in the authors' code (xmouyang/Harmony, preset
`authors`) evenly. Parameters are compared, and buffers of encoders are averaged with them in stage
1; the code never exchanges them. A modality that a client lacks counts as discrepancy 0. K-means
starts from points far from each other, so that the order of clients does not matter; the code draws
its start. Encoders learn at a tenth of the rate in stage 2, which the code declares, and then
overwrites. Clients of stage 2 are drawn alike, whatever selection.by. Not followed, being defects:
three of four of its servers add the mean update to classifiers that contain the client's own
already; one has its clusters written down by hand.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from hpcfed import (
    Client,
    Federation,
    Guide,
    LocalSteps,
    Mean,
    Params,
    RoundBased,
    Share,
    Upload,
    rng,
    sgd,
)
from hpcfed.algorithms.base import common_name, warn_of_short_run
from hpcfed.algorithms.clusters import clusters
from hpcfed.algorithms.multimodal.discrepancies import cluster, discrepancy
from hpcfed.algorithms.multimodal.networks import (
    ALL,
    all_modalities,
    encoder_of,
    in_classifier,
    in_network,
    modalities,
    only,
    phase,
)
from hpcfed.config.conditions import below, field
from hpcfed.training import evaluate
from hpcfed.training.server import predictor

FUSION = "fusion/"  # prefix of the names of the classifier that stage 2 starts from
FUSED = "fused"  # key in the memory of a client that has begun stage 2


class Harmony(RoundBased):
    """With one modality Harmony is FedAvg, bit for bit; stage 2 then has no clients."""

    guide = Guide(
        data="different modalities and labels",
        sent="encoders, then fusion layers",
        won="four multimodal data sets, above FedAvg by modality",
    )

    needs_classes: ClassVar[str] = "it averages class probabilities of modalities"
    keeps_weights: ClassVar[bool | None] = True
    per: ClassVar[Any] = "tensor"
    trains_once: ClassVar[bool] = False

    stage1_rounds: NonNegativeInt = 19
    """Rounds of modality-wise training, before those of fusion."""
    clusters: PositiveInt = field(3, used_if={"stage1_rounds": below("rounds")})
    """Clusters of clients in the fusion; as many as clients: classifiers are not averaged."""
    encoder_rate: Share = field(0.1, used_if={"stage1_rounds": below("rounds")})
    """Learning rate of encoders in the fusion, as a part of local.lr; 0: they stay as they are."""

    def warn(self, fed: Federation) -> None:
        """Warn if no modalities are fused, or if hardly any classifiers are averaged."""
        several = sum(len(names) > 1 for names in fed.modalities)
        fusing = min(several, fed.cohort_size)  # clients in a round of stage 2
        if several:
            warn_of_short_run(fed, "stage1_rounds", "no modalities are fused")
        if several and self.clusters >= fusing:
            fed.warnings.say(
                f"harmony: classifiers are hardly averaged, because there are "
                f"algorithm.clusters = {self.clusters} for the {fusing} clients with several "
                f"modalities in a round; set fewer clusters"
            )

    def fuses(self, fed: Federation, t: int) -> bool:
        """Return whether round t belongs to stage 2.

        There is no stage 2 if no client has several modalities.
        """
        return t >= self.stage1_rounds and any(len(names) > 1 for names in fed.modalities)

    def init(self, fed: Federation) -> Params:
        """Return the networks, "MODALITY/name", and the classifier for stage 2, "fusion/name"."""
        self.warn(fed)
        model = fed.initial()
        state = model.pick(in_classifier).prefixed(FUSION)
        for m in all_modalities(fed):
            state |= model.pick(in_network(m)).prefixed(f"{m}/")
        return Params(state)

    def cohort(self, fed: Federation, t: int) -> list[int]:
        if not self.fuses(fed, t):
            return fed.sample(t)
        several = [k for k in range(fed.K) if len(fed.modalities[k]) > 1]
        size = min(len(several), fed.cohort_size)
        chosen = rng.stream(fed.seed, "cohort", t).choice(several, size, replace=False)
        return sorted(chosen.tolist())

    def offer(self, fed: Federation, client: Client, state: Params) -> Params:
        """Return what a client downloads before it trains.

        Stage 1: the networks of the client's modalities.
        Stage 2: the encoders and a classifier when the client begins stage 2, nothing afterwards.
        """
        names = modalities(fed, client.id)
        if FUSED in client.memory:
            return Params()
        if not self.fuses(fed, fed.t):
            return state.pick(lambda name: name.partition("/")[0] in names)
        received = dict(state.under(FUSION))
        for m in names:
            received |= state.under(f"{m}/").pick(lambda name: not in_classifier(name))
        return Params(received)

    def receive(self, client: Client, state: Params) -> None:
        """Load encoders and classifiers by their names in the model.

        Of several classifiers the last one stays.
        """
        client.load({name.rpartition("/")[2]: v for name, v in state.items()})

    def round(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        if self.fuses(fed, t):
            return self.fuse(fed, state, cohort, t)
        return super().round(fed, state, cohort, t)

    def local(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        """Train the networks of the client's modalities in stage 1, one after the other."""
        download, sent = fed.down(client, self.offer(fed, client, state)), Params()
        for m in modalities(fed, client.id):
            network = download.under(f"{m}/")
            client.load(network)
            loss = partial(self.part_loss, client, network, (m,))
            sgd(fed, client, t, loss, only=in_network(m), phase=phase(fed, m))
            sent |= client.params(in_network(m)).prefixed(f"{m}/")
        return Upload(Mean.of(Params(sent), self.weight(client)), relative_to=download)

    def part_loss(
        self, client: Client, state: Params, names: tuple[str, ...], model: Any, x: Any, y: Tensor
    ) -> Tensor:
        """Return the loss of the model that gets only these modalities."""
        return self.loss(client, state, model, only(x, names), y)

    def fuse(self, fed: Federation, state: Params, cohort: list[int], t: int) -> Params:
        """Do a round of stage 2; the server's state does not change."""
        sent = fed.run(cohort, lambda client: self.fusion(fed, client, state, t))
        discrepancies = fed.gather({k: parts["discrepancies"] for k, parts in sent.items()})
        cluster = fed.on_root(lambda: self.group(fed, discrepancies))
        keep = state.under(FUSION).map(
            lambda v: torch.stack([v] * (max(cluster.values(), default=0) + 1))
        )
        parts = (
            (k, clusters.part(upload["classifier"], self.weight(fed.clients[k]), cluster[k], keep))
            for k, upload in sent.items()
        )
        means = fed.mean(parts, keep=keep, per="row")
        fetch = lambda c: c.load(fed.down(c, clusters.row(means, cluster[c.id])))  # noqa: E731
        fed.run(sorted(cluster), fetch)
        return state

    def fusion(self, fed: Federation, client: Client, state: Params, t: int) -> Upload:
        """Train a client's fused model; send its classifier, and d_k(i) of its modalities."""
        download = fed.down(client, self.offer(fed, client, state))
        names = modalities(fed, client.id)
        if download:
            self.receive(client, download)
        start = client.params(in_classifier)
        loss = partial(self.part_loss, client, download, names)
        wanted = lambda name: any(in_network(m)(name) for m in names)  # noqa: E731
        with LocalSteps(fed, client, t, phase="fusion", only=wanted) as steps:
            encoders = [
                client.skeleton.view(n) for n in steps.optimiser.names if not in_classifier(n)
            ]
            for x, y in steps:
                before = [v.clone() for v in encoders]
                steps.learn(loss, x, y)
                for value, old in zip(encoders, before, strict=True):
                    value.lerp_(old, 1 - self.encoder_rate)
        client.memory[FUSED] = 1
        encoder = {m: encoder_of(m, fed.trainable) for m in names}
        initial = {m: state.under(f"{m}/").pick(encoder[m]) for m in names}
        discrepancies = [discrepancy(client.params(encoder[m]), initial[m]) for m in names]
        return Upload(
            classifier=client.params(in_classifier),
            discrepancies=torch.tensor(discrepancies),
            relative_to={"classifier": start},
        )

    def group(self, fed: Federation, discrepancies: dict[int, Tensor]) -> dict[int, int]:
        """Return the cluster of each client, found from its discrepancies."""
        named = all_modalities(fed)
        d = torch.zeros(len(discrepancies), len(named), dtype=torch.float64)
        for row, (k, values) in enumerate(discrepancies.items()):
            d[row, [named.index(m) for m in modalities(fed, k)]] = values.double().cpu()
        return dict(zip(discrepancies, cluster(d, self.clusters), strict=True))

    def predictor(self, fed: Federation, client: Client, state: Params) -> Callable[[Any], Tensor]:
        """Return the client's model, restricted to its modalities.

        Before stage 2 a client with several modalities has the mean soft prediction of the server's
        networks instead.
        """
        names = modalities(fed, client.id)
        if len(names) == 1 or FUSED in client.memory:
            plain = names == (ALL,) or set(client.test.modalities) <= set(names)
            model = client.model
            return model if plain else lambda x: model(only(x, names))
        kind = client.architecture
        answers = [(m, predictor(fed, kind, state.under(f"{m}/"))) for m in names]
        soft = lambda x: torch.stack([F.softmax(f(only(x, (m,))), 1) for m, f in answers])  # noqa: E731
        return lambda x: soft(x).mean(0).log()

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Return the accuracy of each modality's network on the whole test split.

        Only with evaluate.common.
        """
        if not fed.job.evaluate.common:
            return {}
        numbers = {}
        for m in all_modalities(fed):
            network = predictor(fed, fed.architectures[0], state.under(f"{m}/"))
            right = evaluate.common(fed, lambda x, m=m, f=network: f(only(x, (m,))))  # type: ignore[misc]
            numbers[common_name(fed) + (f"_{m}" if m != ALL else "")] = right
        return numbers
