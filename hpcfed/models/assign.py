"""Which client has which architecture."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

from hpcfed.core import rng
from hpcfed.models.widths import architecture_name, parse

if TYPE_CHECKING:
    from hpcfed.config.job import Job


def assign(job: Job) -> tuple[str, ...]:
    """The architecture of each client, the same on any number of ranks."""
    mix, widths = job.models.mix, job.models.widths
    proxy = f"+{job.models.proxy}" if "proxy" in job.algorithm.needs else ""
    variants = job.algorithm.variants
    kinds = {  # one object for all clients
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
    """The architecture of client k in round t, with one of models.widths, drawn anew."""
    width = float(rng.stream(job.seed, "level", t, k).choice(job.models.widths))
    return architecture_name(parse(architecture).base, width)
