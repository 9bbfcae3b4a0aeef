"""What a run has cost in privacy, and what that number means."""

from __future__ import annotations

import math
from typing import Any

from hpcfed.results.columns import by_round
from hpcfed.storage.record import Record

ACCOUNTANTS = {"pld": "privacy loss distributions", "rdp": "Renyi differential privacy"}
NOT_HIDDEN = (
    "not hidden: scores, losses, numbers of examples, cohorts, bytes and times in results and on "
    "the screen, and the means and categories by which inputs are encoded; they come from the "
    "clients' data without noise"
)


def facts(record: Record) -> dict[str, Any]:
    """Return epsilon after the last round and what it means; {} without an account of privacy.

    epsilon: None if it is not finite.
    """
    about = record.header.get("privacy")
    if not about:
        return {}
    spent = by_round(record, "epsilon")
    epsilon = float(spent[-1]) if len(spent) else 0.0
    return {"epsilon": epsilon if math.isfinite(epsilon) else None, **about}


def scope(about: dict[str, Any]) -> str:
    """Return what an epsilon compares, and how it was computed.  about: from `facts`."""
    return (
        f"delta {about['delta']:g}; of federations in which {about['neighbours']}; by "
        f"{ACCOUNTANTS[about['accountant']]}"
    )


def lines(record: Record) -> list[str]:
    """Return lines of a summary; [] without an account of privacy."""
    spent = facts(record)
    if not spent:
        return []
    epsilon = "not finite" if spent["epsilon"] is None else f"{spent['epsilon']:.4g}"
    return [
        f"privacy: epsilon {epsilon} at {scope(spent)}",
        f"  {spent['by']} noise, multiplier {spent['noise']:g}; {spent['cohorts']}",
        f"  {NOT_HIDDEN}",
    ]
