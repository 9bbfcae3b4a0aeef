"""What the server has of an upload of which it may know nothing but a mean over clients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from hpcfed.comm import codec
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params, Per, Term

if TYPE_CHECKING:
    from hpcfed.federation.federation import Federation
    from hpcfed.federation.upload import Upload


class MeanRule:
    """What stands in the place of the exact mean of uploads.

    It is the same on all ranks. What it keeps from round to round is saved in checkpoints.
    seals: whether the server may know nothing of uploads but what this rule makes of them.
    hidden_by: the setting of the job that seals them, for messages.
    hides: what it does to them, as it follows this setting.
    hides_counts: whether the server may not know clients' numbers of examples by class either.
    instead: another setting, for methods that need single uploads.
    empty_cohorts: whether a round of no client is run, too, because its mean is not the old value.
    """

    seals = True
    hidden_by = ""
    hides = "hides what single clients send"
    hides_counts = True
    instead = ""
    empty_cohorts = False

    def mean(
        self, fed: Federation, parts: list[tuple[int, Sealed]], keep: Params, per: Per
    ) -> Params:
        """Return what the server gets in the place of `fed.mean`; collective.

        parts: of this rank's clients, by client.
        """
        raise NotImplementedError

    def open(self, fed: Federation) -> None:
        """Check, before the run, that the rule can work with the noise of the job."""

    def begin(self) -> None:
        """Begin a round, for the first time or again."""

    def received(self, fed: Federation, k: int, upload: Upload) -> Upload:
        """Return the parts of client k's upload that the method sent; the rule takes others.

        Raises ConfigError if the client may not send anything in this round.
        """
        return upload

    def report(self) -> float:
        """Return the number of this rank from which the rule learns at the end of a round."""
        return 0.0

    def close(self, fed: Federation, uploads: int, reports: Collection[float]) -> None:
        """Learn from the round, before the next one.

        uploads: most of one client in the round.  reports: of all ranks.
        """

    def share_of_cohorts(self, fed: Federation) -> float | None:
        """Return the expected share of the clients in a cohort, if nobody may know the real one."""
        return None

    def columns(self) -> dict[str, float]:
        """Return columns of the record of a round, by name."""
        return {}

    def learn(self, trial: MeanRule) -> None:
        """Note what the rule of a trial has seen."""

    def fresh(self) -> MeanRule:
        """Return a rule of the same settings and without history, for a trial."""
        return self

    def to_tree(self) -> dict[str, Any]:
        """Return what a checkpoint saves."""
        return {}

    def from_tree(self, tree: dict[str, Any]) -> None:
        """Restore what `to_tree` returned."""


class Sealed:
    """A part of an upload without values: only `fed.mean` opens it.

    Whatever else is done with it raises ConfigError, so that no code reads an upload that the job
    hides from the server.
    client: its id.  opened: whether a mean has opened it.
    """

    __slots__ = ("__part", "__rule", "client", "is_update", "opened")

    def __init__(self, client: int, part: Any, is_update: bool, rule: MeanRule) -> None:
        self.client, self.is_update = client, is_update
        self.__part, self.__rule, self.opened = part, rule, False

    def terms_for(self, rule: MeanRule) -> tuple[Term, ...]:
        """Return the values and weights for the rule that sealed them."""
        if rule is not self.__rule or not isinstance(self.__part, Mean):
            self._refuse()
        self.opened = True
        return self.__part.terms

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise refusal(self.__rule)

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        check_open([*args, *(kwargs or {}).values()])
        return NotImplemented  # a part in another container: torch raises TypeError

    __getitem__ = __iter__ = __len__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse
    __eq__ = __lt__ = __float__ = __int__ = __reduce_ex__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def refusal(rule: MeanRule) -> ConfigError:
    """Return the error for a method that reads what the job hides."""
    return ConfigError(
        f"{rule.hidden_by} {rule.hides}, but this method's server computes with it and not only "
        f"with weighted means\n  take {rule.instead and f'{rule.instead}, or '}a method whose "
        f"server only averages, such as fedavg or fedclassavg"
    )


def check_open(values: Iterable[Any]) -> None:
    """Raise ConfigError if one of these values, which the server moves or reads, is sealed."""
    for part in sealed_in(values):
        part._refuse()


def sealed_in(values: Iterable[Any]) -> Iterator[Sealed]:
    """Iterate over the sealed parts in values, and in mappings, lists and tuples of such."""
    for value in values:
        if isinstance(value, Sealed):
            yield value
        elif isinstance(value, Mapping):
            yield from sealed_in(value.values())
        elif isinstance(value, list | tuple):
            yield from sealed_in(value)


codec.register(Sealed, "sealed", Sealed._refuse, Sealed._refuse)


def sealed_parts(parts: Iterable[tuple[int, Any]], rule: MeanRule) -> list[tuple[int, Sealed]]:
    """Return the parts of uploads by client. Raises ConfigError for values that no client sent."""
    pairs = list(parts)
    if rule.seals and not all(isinstance(part, Sealed) for _, part in pairs):
        raise refusal(rule)
    return pairs
