"""Attacks of clients: on their data, and on what they send, alone or together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcfed.config.attack import ATTACKS

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation


def install_attack(fed: Federation) -> None:
    """Give a federation the attack of its job, before all that honest clients do to uploads."""
    if fed.job.attack.by == "none":
        return
    fed.attack = attack = ATTACKS[fed.job.attack.by].load()(fed.job)
    attack.check(fed)
    attack.begin(fed)
    fed.transforms.append(attack)
