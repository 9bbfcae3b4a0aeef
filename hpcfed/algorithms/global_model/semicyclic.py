"""Semi-cyclic SGD: clients take part by time of day, and each block of the day has a predictor.

Eichner et al. (Semi-Cyclic Stochastic Gradient Descent), ICML 2019, arXiv:1904.10120, section 3
(pluralistic averaging). One chain of FedAvg runs through all blocks of the day. T_i are the rounds
of block i, over all days so far. The authors' code (google-research/federated, semi_cyclic_sgd)
takes the last model of block i (predict = "last"); the code was read, the full text of the paper
was not. A client belongs to the block id * blocks // K, as if in its time zone, and must know it
when it predicts.

Objective: F_k(w)
Server: w <- sum_k p_k w_k; v_i <- mean_(t in T_i) w_t
Round:
1. The cohort is drawn from the clients of the present block of the day.
2. They train the server's model as in FedAvg.
3. The server takes the weighted mean of their models.
4. The predictor of the block, v_i, is the mean of the server's models after all rounds of this
   block.
5. A client predicts with the predictor of its block.

Deviations: the unit of time is the round, `block_rounds` of which make a block, not the seconds of
virtual time. Cohorts are drawn from the block's group alone, participation * K clients of it or all
that are available. Before its first round a block predicts with the server's model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from hpcfed import Client, Federation, Guide, Params, RoundBased, rng
from hpcfed.algorithms.base import common_name, score_common, warn_of_short_run
from hpcfed.config.conditions import above, field


@dataclass(frozen=True)
class State:
    """State of the server: the models that are trained, and the predictors of the blocks.

    chains: models that are trained, one or one per block, with names such as `0.head.weight`.
    readouts: predictors by block, with the same kind of names.
    counts: [blocks], number of rounds in each predictor.
    """

    chains: Params
    readouts: Params
    counts: Tensor


class SemiCyclic(RoundBased):
    """FedAvg with a predictor for each block of the day.

    Its chain is FedAvg with the same cohorts, bit for bit.
    """

    guide = Guide(
        data="data that change with the time of day",
        sent="all weights",
        won="blocks of clients by time of day",
    )

    edges: ClassVar[str] = "sums"
    samples_cohorts: ClassVar[bool] = False

    blocks: PositiveInt = 6
    """Number of blocks of a day, and of groups of clients."""
    block_rounds: PositiveInt = field(1, used_if={"blocks": above(1)})
    """Number of rounds of a block."""
    chain: Literal["common", "separate"] = field("common", used_if={"blocks": above(1)})
    """One model runs through all blocks, or each block trains its own model."""
    predict: Literal["mean", "last", "common"] = "mean"
    """A client predicts with the mean of the models of its block, the last of these, or the current
    model.
    """

    def group(self, fed: Federation, k: int) -> int:
        """Return the block to which a client belongs."""
        return min(k * self.blocks // fed.K, self.blocks - 1)

    def block(self, t: int) -> int:
        """Return the block of round t."""
        return t // self.block_rounds % self.blocks

    def chain_of(self, block: int) -> str:
        """Return the prefix of the names of the block's chain."""
        return f"{block if self.chain == 'separate' else 0}."

    def cohort(self, fed: Federation, t: int) -> list[int]:
        available = [k for k in range(fed.K) if self.group(fed, k) == self.block(t)]
        n = min(fed.cohort_size, len(available))
        chosen = rng.stream(fed.seed, "cohort", t).choice(len(available), n, replace=False)
        return sorted(available[i] for i in chosen)

    def init(self, fed: Federation) -> State:
        never = "some blocks have no round, so that their clients are never trained"
        warn_of_short_run(fed, "blocks", never, begins=(self.blocks - 1) * self.block_rounds)
        model = fed.initial()
        chains = range(self.blocks if self.chain == "separate" else 1)
        every = [model.prefixed(f"{i}.") for i in range(self.blocks)]
        return State(
            Params({n: v.clone() for i in chains for n, v in every[i].items()}),
            Params({n: v.clone() for one in every for n, v in one.items()}),
            torch.zeros(self.blocks, dtype=torch.int64, device=fed.device),
        )

    def offer(self, fed: Federation, client: Client, state: State) -> Params:
        return state.chains.under(self.chain_of(self.group(fed, client.id)))

    def aggregate(self, fed: Federation, state: State, uploads: list[tuple[int, Any]]) -> Params:
        return fed.mean(uploads, keep=state.chains.under(self.chain_of(self.block(fed.t))))

    def server(self, fed: Federation, state: State, mean: Params, cohort: list[int]) -> State:
        return self.read(state, mean, self.block(fed.t))

    def read(self, state: State, x: Params, block: int) -> State:
        """Return the state after a round of this block that resulted in model x."""
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
        """Return the client's model with the weights of its block's predictor."""
        block = self.group(fed, client.id)
        if self.predict == "common" or not state.counts[block]:
            client.load(self.offer(fed, client, state))
        else:
            client.load(state.readouts.under(f"{block}."))
        return client.model

    def columns(self, fed: Federation, state: State) -> dict[str, float]:
        """Return the block of the day, and with a common chain also the accuracy of its model.

        This is the model that is trained, not a block's predictor.
        """
        numbers = {"block": float(self.block(fed.t))}
        if self.chain == "separate" or not fed.job.evaluate.common:
            return numbers
        plain = self.model_copy(update={"predict": "common"})
        return numbers | {common_name(fed): score_common(plain, fed, state)}
