"""What secure aggregation costs: seconds of masks, bytes by protocol, and its share of a round.

    python benchmarks/secure.py    # about three minutes; results/secure/costs.json

Seconds are of one core: those of the processor. A client's keys, shares and masks are made as in a
run; in large sums only some of them mask, and the server's part is left out. `generator` is what
AES-256 alone takes for as many bytes as there are masks, so `ratio` is masking over the generator's
own speed; LightSecAgg's `encoding` is what its coded masks take (`prepare` without keys), and
`products` its matrix products alone in float64. Bytes are of one client, in a sum in which all
clients stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import hpcfed
from hpcfed.comm import Serial
from hpcfed.config.secure import Secure
from hpcfed.federation.transforms.secure import field, keys
from hpcfed.federation.transforms.secure.attendance import STAGES, Attendance
from hpcfed.federation.transforms.secure.costs import Cost
from hpcfed.federation.transforms.secure.sums import Envelope, SecureSums

OUT = Path(__file__).parent / "results" / "secure" / "costs.json"
RUNS = Path(__file__).parents[1] / "runs" / "secure"
CASES = [  # protocol, clients, values, clients that mask
    *(("secagg", n, 100_000, n) for n in (10, 30, 100)),
    ("secagg", 100, 1_000_000, 5),
    *(("secagg+", n, 100_000, n) for n in (10, 30, 100, 300)),
    ("secagg+", 1000, 100_000, 5),
    ("secagg+", 100, 1_000_000, 100),
    *(("lightsecagg", n, 100_000, n) for n in (10, 30, 100)),
    *((by, n, 1_700_000, 6) for by in ("secagg", "secagg+", "lightsecagg") for n in (10, 100)),
]
TIMES = 3  # of which the fastest counts
ROUNDS = 10
JOB: dict[str, Any] = {
    "clients": 20,
    "participation": 0.5,
    "models": {"mix": ("cnn",)},
    "data": {"name": "digits"},
    "algorithm": {"name": "fedavg"},
    "evaluate": {"before": False, "every": 100},
    "quiet": True,
    "overwrite": True,
}


def main() -> None:
    rows = [measure(*case) for case in CASES]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    write(rows, rounds())
    print(OUT.read_text())


def write(rows: list[dict[str, Any]], of_rounds: dict[str, Any]) -> None:
    """Write the results, one sum a line."""
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    OUT.write_text(f'{{\n "round": {json.dumps(of_rounds)},\n "sums": [\n{lines}\n ]\n}}\n')


def measure(by: str, n: int, words: int, masking: int) -> dict[str, Any]:
    """Return seconds and bytes of one sum."""
    sums = SecureSums(Secure(by=by), n)
    plan = sums.plan(Attendance(*(range(n) for _ in STAGES)), words, (0, 0, 0))
    comm = SimpleNamespace(rank=0, size=1, gather=dict)
    execution = plan.execution(SimpleNamespace(clients=range(n), comm=comm))
    prepare = seconds(execution.prepare, times=1) / n
    values = [np.ones(words, np.uint64) for _ in range(TIMES)]
    mask = min(
        seconds(lambda k=k: execution.masked(k, values[k % TIMES]), 1) for k in range(masking)
    )
    peers = 0 if by == "lightsecagg" else len(plan.graph.neighbours(0))
    generator = seconds(lambda: generate((1 + peers) * words))
    costs = {k: Cost() for k in range(n)}
    server = plan.add_seconds(costs, sums.speeds)
    cost = plan.cost([0])[0]
    row = {
        "by": by,
        "clients": n,
        "values": words,
        "neighbours": peers or n - 1,
        "prepare": round(prepare, 4),
        "mask": round(mask, 4),
        "generator": round(generator, 4),
        "ratio": round(mask / generator, 2),
        "charged_client": round(costs[0].seconds, 4),
        "charged_server": round(server, 4),
        "up": dict(zip(STAGES, cost.up, strict=True)),
        "down": dict(zip(STAGES, cost.down, strict=True)),
    }
    if by == "lightsecagg":
        row["encoding"], row["products"] = encoding(execution, n)
    if masking == n:
        total = execution.empty()
        row["unmask"] = round(seconds(lambda: execution.unmask(total), 1), 4)
    print(row, flush=True)
    return row


def seconds(work: Callable[[], object], times: int = TIMES) -> float:
    """Return the least seconds of some repetitions."""
    measured = []
    for _ in range(times):
        start = process_time()
        work()
        measured.append(process_time() - start)
    return min(measured)


def encoding(execution: Any, n: int) -> tuple[float, float]:
    """Return the seconds of a client's shares, and of matrix products of that size."""
    powers = field.powers(range(1, n + 1), execution.survivors)
    factor = powers.astype(float)
    other = np.ones((execution.survivors, execution.piece))
    return (
        round(seconds(lambda: execution.members[0].shares(powers)), 4),
        round(seconds(lambda: [matrix @ other for matrix in factor]), 4),
    )


def generate(words: int) -> None:
    """Make this many words of a mask stream, and do nothing with them."""
    chunks = keys.full_chunks(bytes(keys.KEY))
    for _ in range(0, words, keys.CHUNK):
        next(chunks)


def rounds() -> dict[str, Any]:
    """Return the seconds of a round of FedAvg, and what charged and made masks add to it.

    They are those of the processor. What masks add is the time of the secure sum and of the checks
    of uploads, without that of the open sum if masks are charged; made masks replace that sum.
    """
    spent = Stopwatch()
    patches = [
        mock.patch.object(SecureSums, "sum", spent.timed("secure", SecureSums.sum)),
        mock.patch.object(Envelope, "upload", spent.timed("checks", Envelope.upload)),
        mock.patch.object(Serial, "sum", spent.timed("open", Serial.sum)),
    ]
    secure = {"by": "secagg+", "bound": 100.0}
    result = {}
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        for masks in ("charged", "made"):
            spent.clear()
            start = process_time()
            hpcfed.run(**JOB, rounds=ROUNDS, secure={**secure, "masks": masks}, out=RUNS / masks)
            seconds_per_round = (process_time() - start) / ROUNDS
            added = spent["secure"] + spent["checks"] - (masks == "charged") * spent["open"]
            result[masks] = {
                "round": round(seconds_per_round, 4),
                "added": round(added / ROUNDS, 5),
                "share": round(added / ROUNDS / seconds_per_round, 4),
            }
    return result


class Stopwatch(dict[str, float]):
    """Seconds of the processor in functions, by name."""

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self[name] = self.get(name, 0.0) + process_time() - start

        return call


if __name__ == "__main__":
    main()
