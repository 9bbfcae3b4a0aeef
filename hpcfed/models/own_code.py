"""The code of users' methods and models, and whether it has changed since it was used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcfed.config.architectures import find
from hpcfed.core import user_code
from hpcfed.core.architecture import Architecture
from hpcfed.core.code_digest import digest
from hpcfed.core.errors import ConfigError


def own_names(method: str, models: Iterable[str | None]) -> list[str]:
    """Return those of these names that are users' own, as "module:attribute"."""
    named = filter(None, models)
    parts = [part.base for name in named for part in Architecture.parse(name).parts]
    bases = [base for base in parts if ":" in base and find(base).own]
    return list(dict.fromkeys([*([method] if ":" in method else []), *bases]))


def digests(names: Iterable[str]) -> dict[str, str]:
    """Return the digest of the code of each name, which is imported."""
    return {name: digest(user_code.load("own", name, "module:attribute")) for name in names}


def changed(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose code is other than that of the stored digests."""
    return [name for name, code in now.items() if stored.get(name, code) != code]


def check_trained(
    stored: Mapping[str, str], names: Iterable[str], place: str, own_changed: bool
) -> dict[str, str]:
    """Return the digests of the code of these names, with which a trained model is built again.

    stored: those of the code that was trained.  place: the run or file, for the message.
    Raises ConfigError if they differ, unless the user accepts that (own_changed).
    """
    now = digests(names)
    differ = changed(stored, now)
    if differ and not own_changed:
        raise ConfigError(
            f"{place}: the code of {', '.join(differ)} has changed since the model was trained, so "
            f"its predictions would be those of another model; restore the code, or accept that "
            f"it differs with --own-changed (in Python load_model(own_changed=True))"
        )
    return now
