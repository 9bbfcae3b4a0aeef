"""Models of which each client keeps a part of its own, beside the model that all clients share."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Literal, cast

from torch import Tensor, nn

from hpcfed.models.model import Extended, Head, Model


class WithPersonal(Extended):
    """A common model, body and head, and a client's own copy of its head or of all of it.

    The parameters of the copy are named "personal. ...", and start as those that they are copies
    of. Subclasses say in `forward` how both predict together.
    """

    def __init__(self, model: Model, part: Literal["head", "model"]):
        super().__init__(model)
        self.part = part
        self.personal = cast(Any, deepcopy(model.head if part == "head" else model))

    def copies(self) -> Iterable[tuple[str, nn.Module]]:
        return [("head." if self.part == "head" else "", self.personal)]

    def classify_common(self, x: Any) -> Tensor:
        """Return the logits of the common model alone, [n, C]."""
        return cast(Head, self.head)(self.body(x))


def in_common(name: str) -> bool:
    """Return whether the tensor of this name belongs to the common model."""
    return name.startswith(("body.", "head."))


def in_personal(name: str) -> bool:
    """Return whether the tensor of this name belongs to the client's own copy."""
    return name.startswith("personal.")
