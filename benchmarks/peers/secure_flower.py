"""SecAgg+ of Flower: the bytes of its messages by stage, and the error of its mean.

Flower's own server workflow and client modifier run in this process; a grid in between counts what
passes and drops the replies of some clients. Its Python needs flwr and NumPy. Called by `secure.py`
with a NumPy file of the clients' values, the numbers of shares and threshold, and the clients that
drop out; writes JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.client.mod.secure_aggregation.secaggplus_mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS as CONFIGS
from flwr.compat.common import recorddict_compat as compat
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation import SecAggPlusWorkflow
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.supercore.task_identity import TaskIdentity

STAGES = ("keys", "shares", "inputs", "answers")
WEIGHT = 1000.0


def main(file: str, shares: int, threshold: int, dropped: list[int]) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    values = np.load(file)
    n, words = values.shape
    weights = [50 + 10 * k for k in range(n)]
    grid = Grid(values, weights, {k + 1 for k in dropped})
    workflow = SecAggPlusWorkflow(shares, threshold, max_weight=WEIGHT)
    context = server_context(n, words)
    state = WorkflowState()
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    for stage in ("setup", "share_keys", "collect_masked_vectors", "unmask"):
        grid.stage = len(grid.bytes)
        if not getattr(workflow, f"{stage}_stage")(grid, context, state):
            raise SystemExit(f"Flower's stage {stage} failed")
    (mean,) = parameters_to_ndarrays(context.strategy.parameters)
    present = [k for k in range(n) if k not in dropped]
    exact = np.average(values[present].astype(float), 0, [weights[k] for k in present])
    neighbours = {k - 1: sorted(j - 1 for j in js if j != k) for k, js in grid.neighbours.items()}
    print(
        json.dumps(
            {
                "bytes": grid.bytes,
                "parts": grid.parts,
                "neighbours": neighbours,
                "error": float(np.abs(mean - exact).max()),
            }
        )
    )


def server_context(n: int, words: int) -> Any:
    """Return what the workflow reads of the server: configuration, strategy, clients."""
    zeros = ndarrays_to_parameters([np.zeros(words, np.float32)])
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: 1}),
            MAIN_PARAMS_RECORD: compat.parameters_to_arrayrecord(zeros, True),
        }
    )
    strategy = SimpleNamespace(parameters=None)

    def configure_fit(*_: Any) -> list[Any]:
        return [(SimpleNamespace(node_id=k + 1), FitIns(zeros, {})) for k in range(n)]

    def aggregate_fit(_: int, results: list[Any], __: Any) -> tuple[Any, dict]:
        strategy.parameters = results[0][1].parameters
        return strategy.parameters, {}

    strategy.configure_fit, strategy.aggregate_fit = configure_fit, aggregate_fit
    history = SimpleNamespace(add_metrics_distributed_fit=lambda **_: None)
    manager = SimpleNamespace(num_available=lambda: n)
    return SimpleNamespace(state=state, strategy=strategy, client_manager=manager, history=history)


class Grid:
    """Carries messages between the workflow and its clients, and counts their bytes.

    bytes: for each stage, by client: what the server sends it, and what it sends.
    parts: bytes of a public key, a sealed pair of shares, a masked vector, and of the shares of a
    seed and of a private key.
    """

    def __init__(self, values: np.ndarray, weights: list[int], dropped: set[int]) -> None:
        self.values, self.weights, self.dropped = values, weights, dropped
        self.contexts = {k + 1: Context(0, k + 1, {}, RecordDict(), {}) for k in range(len(values))}
        self.bytes: list[dict[int, list[int]]] = []
        self.parts: dict[str, int] = {}
        self.neighbours: dict[int, list[int]] = {}
        self.stage = 0

    def send_and_receive(self, messages: Any, **_: Any) -> list[Any]:
        replies, counts = [], dict[int, list[int]]()
        for message in messages:
            k = message.metadata.dst_node_id
            down = self.size(message, k)
            if STAGES[self.stage] == "shares":
                configs = message.content.config_records[CONFIGS]
                self.neighbours[k] = [int(j) for j in configs if j.isdigit()]
            if STAGES[self.stage] in ("inputs", "answers") and k in self.dropped:
                counts[k - 1] = [down, 0]
                continue
            reply = secaggplus_mod(deepcopy(message), self.contexts[k], self.train)
            counts[k - 1] = [down, self.size(reply, k)]
            self.note(reply)
            replies.append(reply)
        self.bytes.append(counts)
        return replies

    def train(self, message: Any, _: Any) -> Any:
        """Return a client's trained model."""
        k = message.metadata.dst_node_id
        parameters = ndarrays_to_parameters([self.values[k - 1]])
        result = FitRes(Status(Code.OK, ""), parameters, self.weights[k - 1], {})
        return SimpleNamespace(content=compat.fitres_to_recorddict(result, False))

    def size(self, message: Any, k: int) -> int:
        """Return the bytes of keys, shares and vectors; a client's own key does not count."""
        total = 0
        for name, value in message.content.config_records[CONFIGS].items():
            items = value if isinstance(value, list) else [value]
            if name != str(k):
                total += sum(len(item) for item in items if isinstance(item, bytes))
        return total

    def note(self, reply: Any) -> None:
        """Take down the bytes of the parts of a client's message."""
        configs = reply.content.config_records[CONFIGS]
        if "pk1" in configs:
            self.parts["key"] = len(configs["pk1"])
        if "ctxts" in configs:
            self.parts["sealed"] = len(configs["ctxts"][0])
        if "masked_params" in configs:
            self.parts["vector"] = sum(map(len, configs["masked_params"]))
        for j, share in zip(configs.get("nids", ()), configs.get("shares", ()), strict=True):
            self.parts["key_share" if j in self.dropped else "seed_share"] = len(share)


if __name__ == "__main__":
    path, *words = sys.argv[1:]
    n_shares, t, *gone = map(int, words)
    main(path, n_shares, t, gone)
