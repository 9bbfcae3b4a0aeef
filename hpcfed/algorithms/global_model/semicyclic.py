"""Semi-cyclic SGD: which clients are there depends on the time of day; one chain of FedAvg runs
through all blocks of the day, and each block has a predictor of its own, read out of it.

Eichner et al. (Semi-Cyclic Stochastic Gradient Descent), ICML 2019, arXiv:1904.10120, section 3
(pluralistic averaging): the predictor of block i is the mean of the server's models inside block i
over all days. The authors' code (google-research/federated, semi_cyclic_sgd; read, not the full
text of the paper) takes the last one of block i (predict = "last"). A client belongs to the block
id * blocks // K, as one of its time zone, and must know it when it predicts. Deviations: the unit
of time is the round, `block_rounds` of which make a block, not the seconds of virtual time; cohorts
come of the block's group alone, participation * K of it or all that are there; before its first
round a block predicts with the server's model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from hpcfed.algorithms.base import RoundBased, score_common
from hpcfed.core import rng
from hpcfed.core.params import Params

if TYPE_CHECKING:
    from hpcfed.clients.client import Client
    from hpcfed.config.job import Job
    from hpcfed.federation.federation import Federation


@dataclass(frozen=True)
class State:
    """chains: the models that are trained, one or by block, names as `0.head.weight`.  readouts: by
    block, alike.  counts: [blocks], rounds that each read-out holds.
    """

    chains: Params
    readouts: Params
    counts: Tensor


class SemiCyclic(RoundBased):
    """The chain is FedAvg's with the same cohorts, bit for bit."""

    edges: ClassVar[str] = "sums"
    samples_cohorts: ClassVar[bool] = False

    blocks: PositiveInt = 6
    """Blocks of a day, and groups of clients."""
    block_rounds: PositiveInt = 1
    """Rounds of a block."""
    chain: Literal["common", "separate"] = "common"
    """One model runs through all blocks, or each block trains a model of its own."""
    predict: Literal["mean", "last", "common"] = "mean"
    """A client predicts with the mean of the models of its block, the last of these, or the model
    of now.
    """

    def refuses(self, job: Job) -> dict[str, str]:
        found = super().refuses(job)
        if self.blocks == 1:
            why = "there is one block"
            found |= {"algorithm.block_rounds": why, "algorithm.chain": why}
        return found

    def group(self, fed: Federation, k: int) -> int:
        """The block to which a client belongs."""
        return min(k * self.blocks // fed.K, self.blocks - 1)

    def block(self, t: int) -> int:
        """The block of round t."""
        return t // self.block_rounds % self.blocks

    def chain_of(self, block: int) -> str:
        """The beginning of the names of the block's chain."""
        return f"{block if self.chain == 'separate' else 0}."

    def cohort(self, fed: Federation, t: int) -> list[int]:
        there = [k for k in range(fed.K) if self.group(fed, k) == self.block(t)]
        n = min(fed.cohort_size, len(there))
        chosen = rng.stream(fed.seed, "cohort", t).choice(len(there), n, replace=False)
        return sorted(there[i] for i in chosen)

    def init(self, fed: Federation) -> State:
        first = fed.initial()
        chains = range(self.blocks if self.chain == "separate" else 1)
        every = [first.prefixed(f"{i}.") for i in range(self.blocks)]
        return State(
            Params({n: v.clone() for i in chains for n, v in every[i].items()}),
            Params({n: v.clone() for one in every for n, v in one.items()}),
            torch.zeros(self.blocks, dtype=torch.int64, device=fed.device),
        )

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        return state.chains.under(self.chain_of(self.group(fed, client.id)))

    def round(self, fed: Federation, state: State, cohort: list[int], t: int) -> State:
        uploads = fed.stream(cohort, lambda client: self.local(fed, client, state, t))
        name = self.chain_of(self.block(t))
        x = fed.mean(uploads, keep=state.chains.under(name), last=True)
        return self.read(state, x, self.block(t))

    def read(self, state: State, x: Params, block: int) -> State:
        """The state after a round of this block that led to x."""
        counts = state.counts.clone()
        counts[block] += 1
        name, share = f"{block}.", 1 / int(counts[block])
        old = state.readouts.under(name)
        new = x if self.predict != "mean" or share == 1 else old + share * (x - old)
        return State(
            Params({**state.chains, **x.prefixed(self.chain_of(block))}),
            Params({**state.readouts, **new.prefixed(name)}),
            counts,
        )

    def predictor(self, fed: Federation, client: Client, state: State) -> Callable[[Any], Tensor]:
        """The client's model with the weights of its block's predictor."""
        block = self.group(fed, client.id)
        if self.predict == "common" or not state.counts[block]:
            client.load(self.offer(fed, client, state))
        else:
            client.load(state.readouts.under(f"{block}."))
        return client.model

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        """The block of the day; of the common chain also what its model, no read-out, scores."""
        found = {"block": float(self.block(fed.t))}
        if self.chain == "separate" or not fed.job.evaluate.common:
            return found
        plain = self.model_copy(update={"predict": "common"})
        return found | {"accuracy_common": score_common(plain, fed, state)}
