"""What `--dry-run` prints: the resolved job, where clients and memory go, what travels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hpcfed.report.tables import console, size, table

if TYPE_CHECKING:
    from hpcfed.engine.setup import World


def show(
    job: dict[str, Any], facts: World, placement: list[int], memory: dict[int, float],
    traffic: tuple[int, int], balance: float, device: str,
) -> None:  # fmt: skip
    """Print the plan. memory: bytes of weights by rank.  traffic: bytes down and up per client and round."""
    out = console()
    out.print(table("job,value", flat(job)))
    held = {r: [k for k, rank in enumerate(placement) if rank == r] for r in memory}
    rows = [(r, len(ks), ",".join(map(str, ks)) or "none", size(memory[r])) for r, ks in held.items()]
    out.print(f"\nrank 0 computes on {device}")
    out.print(table(">rank,>clients,ids,>weights", rows))
    down, up = traffic
    out.print(f"load: {balance:.1%} of the heaviest rank's work on average, as estimated before measuring")
    out.print(f"traffic per client and round: {size(down)} down, {size(up)} up ({down} + {up} bytes)")
    idle = [r for r, ks in held.items() if not ks]
    if idle:
        out.print(f"warning: {len(idle)} of {len(held)} ranks have no client")


def flat(values: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested fields as rows of dotted names and values."""
    if not isinstance(values, dict):
        return [(name, json.dumps(values))]
    return [row for key, value in values.items() for row in flat(value, f"{name}.{key}" if name else key)]
