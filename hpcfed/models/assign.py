"""Assignment of architectures to clients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING

from hpcfed.core import rng
from hpcfed.models.widths import architecture_name, parse

if TYPE_CHECKING:
    from hpcfed.config.job import Job


def assign(
    job: Job, modalities: tuple[str, ...] = (), held: Sequence[tuple[str, ...]] = ()
) -> tuple[str, ...]:
    """Return the architecture of each client, the same on any number of ranks.

    modalities: those of the data.  held: those of each client. With modalities.encoders = "own" a
    model has encoders of its client's modalities alone, and its name says so:
    "concat[accelerometer&skeleton]".
    """
    kinds = by_mix(job)
    if job.modalities.encoders == "all" or not held:
        return kinds
    known: dict[tuple[str, tuple[str, ...]], str] = {}  # one string shared by all clients
    for kind, own in zip(kinds, held, strict=True):
        name = kind if own == modalities else with_modalities(kind, own)
        known.setdefault((kind, own), name)
    return tuple(known[pair] for pair in zip(kinds, held, strict=True))


def with_modalities(name: str, modalities: Sequence[str]) -> str:
    """Return the name of this architecture with encoders of these modalities alone.

    In a pair only the client's own model changes.
    """
    first, plus, proxy = without_modalities(name).partition("+")
    return f"{first}[{'&'.join(modalities)}]{plus}{proxy}"


def without_modalities(name: str) -> str:
    """Return the name of the same architecture with encoders of all modalities."""
    return re.sub(r"\[[^\]]*\]", "", name)


def by_mix(job: Job) -> tuple[str, ...]:
    """Return the architecture of each client by [models] alone."""
    mix, widths = job.models.mix, job.models.widths
    proxy = f"+{job.models.proxy}" if "proxy" in job.algorithm.needs else ""
    variants = job.algorithm.variants
    kinds = {  # one string shared by all clients
        (own, width, variant): architecture_name(own + variant, width) + proxy
        for own in mix
        for width in widths
        for variant in variants
    }
    if job.models.assign == "random":
        drawn = lambda k, name, ways: ways[rng.stream(job.seed, name, k).integers(len(ways))]  # noqa: E731
        return tuple(
            kinds[drawn(k, "models", mix), drawn(k, "widths", widths), variants[k % len(variants)]]
            for k in range(job.clients)
        )
    return tuple(
        kinds[own]
        for own in islice(
            zip(cycle(mix), cycle(widths), cycle(variants), strict=False), job.clients
        )
    )


def draw_width(job: Job, architecture: str, k: int, t: int) -> str:
    """Return client k's architecture in round t, with a width drawn anew from models.widths."""
    width = float(rng.stream(job.seed, "level", t, k).choice(job.models.widths))
    return architecture_name(parse(architecture).base, width)
