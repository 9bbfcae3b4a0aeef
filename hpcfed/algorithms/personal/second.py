"""What methods share whose clients keep a second head or a second model beside the common one."""

from dataclasses import replace
from typing import Any, ClassVar

from hpcfed import Federation, Params, RoundBased
from hpcfed.algorithms.base import score_server
from hpcfed.core.architecture import Architecture
from hpcfed.models.personal import in_common


class WithSecond(RoundBased):
    """A method whose clients' models are `WithPersonal`; the common model is shared.

    All clients start with one model, and with a copy of it, or of its head, as their own.
    """

    trains_parts: ClassVar[Any] = False

    def shared(self, name: str) -> bool:
        return in_common(name)

    def init(self, fed: Federation) -> Params:
        fed.start_alike()
        return super().init(fed)

    def columns(self, fed: Federation, state: Params) -> dict[str, float]:
        """Return the score of the common model alone, if evaluate.common."""
        common = replace(Architecture.parse(fed.architectures[0]), variants=())
        return score_server(fed, str(common), state)
