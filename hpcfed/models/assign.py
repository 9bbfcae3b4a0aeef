"""Assignment of architectures to clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

from hpcfed.core import rng
from hpcfed.core.architecture import Architecture
from hpcfed.core.errors import ConfigError
from hpcfed.models import missing_head, normalises_batches, represents
from hpcfed.models.variants import name_variant

if TYPE_CHECKING:
    from hpcfed.config.job import Job

PROJECTED = ("torchvision:", "timm:")  # the libraries whose models may get a projection


def assign(
    job: Job,
    shape: tuple[int, ...],
    classes: int,
    modalities: tuple[str, ...] = (),
    of_clients: Sequence[tuple[str, ...]] = (),
) -> tuple[str, ...]:
    """Return the architecture of each client, the same on any number of ranks.

    shape: one example.  classes: C.  modalities: those of the data.
    of_clients: modalities of each client.
    With modalities.encoders = "own" a model has encoders of its client's modalities alone, and its
    name says so: "concat[accelerometer&skeleton]".
    """
    projected, normed = projections(job, shape, classes), other_norms(job, shape, classes)
    changes = {
        name: projected.get(name, "") + normed.get(name, "") for name in {**projected, **normed}
    }
    kinds = by_mix(job, changes)
    if job.modalities.encoders == "all" or not of_clients:
        return kinds
    names: dict[tuple[str, tuple[str, ...]], str] = {}  # one string shared by all clients
    for kind, encoders in zip(kinds, of_clients, strict=True):
        name = kind if encoders == modalities else str(Architecture.parse(kind).only(encoders))
        names.setdefault((kind, encoders), name)
    return tuple(names[pair] for pair in zip(kinds, of_clients, strict=True))


def projections(job: Job, shape: tuple[int, ...], classes: int) -> dict[str, str]:
    """Return the variant with a projection for each model of the mix that needs one, by name.

    If the representations of the mix have several widths, the models of torchvision and timm whose
    width is not models.d get a linear layer to models.d before their head. It follows from [models]
    alone, so that all methods of a comparison have the same models.
    """
    mix, d = list(dict.fromkeys(job.models.mix)), job.models.d
    if len(mix) == 1 or not any(name.startswith(PROJECTED) for name in mix):
        return {}
    libraries = [
        name
        for name in mix
        if name.startswith(PROJECTED) and not missing_head(name, shape, classes, d)
    ]
    widths = {name: represents(name, shape, classes, d) for name in mix}
    if len(set(widths.values())) == 1:
        return {}
    return {name: name_variant("project", d) for name in libraries if widths[name] != d}


def other_norms(job: Job, shape: tuple[int, ...], classes: int) -> dict[str, str]:
    """Return the variant with group normalisation for each model with batch normalisation, by name.

    It is empty unless models.norm asks for it. Raises ConfigError if no model has any.
    """
    if job.models.norm == "batch":
        return {}
    names = dict.fromkeys((*job.models.mix, job.models.proxy))
    normed = {
        name: name_variant("groupnorm")
        for name in filter(None, names)
        if normalises_batches(name, shape, classes, job.models.d)
    }
    if not normed:
        raise ConfigError(
            "models.norm = 'group' has no effect: no model of models.mix has batch normalisation; "
            "leave it out"
        )
    return normed


def by_mix(job: Job, changes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the architecture of each client by [models] alone.

    changes: the variants of models beside those that the method makes, by name.
    """
    mix, widths = job.models.mix, job.models.widths
    method = job.algorithm
    proxy = None
    if "proxy" in method.needs:
        changed = job.models.proxy + changes.get(job.models.proxy, "")
        proxy = Architecture.parse(changed + method.proxy_variant)
    variants = method.variants
    kinds = {  # one string shared by all clients
        (base, width, variant): str(
            replace(
                Architecture.parse(base + changes.get(base, "") + variant),
                width=width,
                proxy=proxy,
            )
        )
        for base in mix
        for width in widths
        for variant in variants
    }
    if job.models.assign == "random":
        choose = lambda k, name, ways: ways[rng.stream(job.seed, name, k).integers(len(ways))]  # noqa: E731
        return tuple(
            kinds[
                choose(k, "models", mix), choose(k, "widths", widths), variants[k % len(variants)]
            ]
            for k in range(job.clients)
        )
    return tuple(
        kinds[choice]
        for choice in islice(
            zip(cycle(mix), cycle(widths), cycle(variants), strict=False), job.clients
        )
    )


def widest(job: Job, architecture: str) -> str:
    """Return the architecture at the largest width that `draw_width` may draw."""
    return str(Architecture.parse(architecture).at(max(job.models.widths)))


def draw_width(job: Job, architecture: str, k: int, t: int) -> str:
    """Return client k's architecture in round t, with a new draw of its width from
    models.widths.
    """
    width = float(rng.stream(job.seed, "level", t, k).choice(job.models.widths))
    return str(Architecture.parse(architecture).at(width))
