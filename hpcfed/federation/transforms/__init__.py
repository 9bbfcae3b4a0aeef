"""What a job makes of uploads and downloads: each mechanism is one file of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcfed.federation.transforms.bounded import Bound, BoundedMean

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


def install(fed: Federation) -> None:
    """Give a federation the transforms of its job, in their order, and the rule for means.

    The order: compression, clipping, a client's noise, masks; at the server the sum, its noise, and
    the denominator.
    """
    privacy = fed.job.privacy
    if privacy.by == "central" and (privacy.clip or privacy.noise):
        fed.transforms.append(Bound(privacy.clip, privacy.cap))
        fed.rule = BoundedMean(privacy.clip)
        fed.rule.hidden_by = f"privacy.by = {privacy.by!r}"
