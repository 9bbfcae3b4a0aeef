"""One client's trained model as others use it: inputs as data sets store them, and out come scores
of the classes.

It needs nothing but this package: no data, no run, no federation. A method may predict with more
than a model: each such way is a class here, and `KINDS` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed.core.errors import CheckpointError
from hpcfed.core.inputs import prepare
from hpcfed.models import build
from hpcfed.models.model import Model, stem
from hpcfed.models.scores import mask_logits, nearest


@dataclass(frozen=True)
class About:
    """What a trained model is, beside its tensors; JSON types alone.

    architecture, shape, d, relu_head, vocabulary: as `build` takes them.  classes: C names.  mean,
    std: of each channel of the training data, empty for tokens; by modality where `shape` is that
    of several.  kind: one of KINDS, and more: what
    that kind takes.
    client, rounds: whose model, after so many rounds.  counted: the column of the results that has
    its accuracy.
    job: all that determined the run.
    """

    architecture: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    d: int
    relu_head: bool
    vocabulary: int
    mean: Any
    std: Any
    client: int
    rounds: int
    counted: str
    kind: str = "logits"
    more: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)

    def build(self, architecture: str, shape: tuple[int, ...]) -> Model:
        """A model for these classes."""
        return build(  # type: ignore[return-value]  # of a pair one model is stored
            architecture,
            shape,
            len(self.classes),
            self.d,
            self.relu_head,
            self.vocabulary,
            self.classes,
        )


class Trained(nn.Module):
    """The client's model itself.

    forward: inputs [n, *shape] as the data set has them -> scores [n, C].

    Images are uint8 (0..255) or floats on the data set's scale, texts tokens; they are normalised
    here. A model for several modalities takes a dict of them.
    """

    def __init__(self, about: About):
        super().__init__()
        self.about = about
        self.model = about.build(about.architecture, about.shape)

    def forward(self, x: Any) -> Tensor:
        return self.scores(self.prepare(x))

    def prepare(self, x: Any) -> Any:
        """Inputs as the layers take them."""
        return prepare(x, self.about.mean, self.about.std)

    def represent(self, x: Any) -> Tensor:
        """Representations [n, d] of inputs as the data set has them: what the classifier reads."""
        return self.features(self.prepare(x))

    @property
    def body(self) -> nn.Module:
        """The layers whose output is the representation."""
        return self.model.body

    def features(self, x: Any) -> Tensor:
        """Representations of prepared inputs."""
        return self.body(x)

    def scores(self, x: Any) -> Tensor:
        """Scores [n, C] of prepared inputs."""
        return self.classify(self.features(x))

    def classify(self, z: Tensor) -> Tensor:
        """Scores [n, C] of representations."""
        return self.model.head(z)


class Masked(Trained):
    """A model that knows some classes only.

    more: present, these classes; mask, what the others' logits become.
    """

    def classify(self, z: Tensor) -> Tensor:
        present = np.array(self.about.more["present"], dtype=np.int64)
        return mask_logits(self.model.head(z), present, self.about.more["mask"])


class Nearest(Trained):
    """A body and prototypes [C, d] of the classes, nan where a class has none: the nearest one
    counts.
    """

    def __init__(self, about: About):
        super().__init__(about)
        self.register_buffer(
            "prototypes", torch.empty_like(self.model.head.weight, requires_grad=False)
        )

    def classify(self, z: Tensor) -> Tensor:
        return nearest(z, cast(Tensor, self.prototypes))


class Served(Trained):
    """The client's first layers, and a server's model that goes on.

    more: server, shape: what that is built from.
    """

    def __init__(self, about: About):
        super().__init__(about)
        self.server = about.build(about.more["server"], tuple(about.more["shape"]))

    @property
    def body(self) -> nn.Module:
        return self.server.body

    def features(self, x: Tensor) -> Tensor:
        return self.body(stem(self.model.body)[0](x))

    def classify(self, z: Tensor) -> Tensor:
        return self.server.head(z)


KINDS = {"logits": Trained, "masked": Masked, "prototypes": Nearest, "served": Served}


def assemble_model(about: About, tensors: Mapping[str, Tensor]) -> Trained:
    """The trained model with these parameters and buffers, which it keeps, in eval mode.

    Draws nothing.

    Raises CheckpointError where the tensors are not those of such a model.
    """
    with torch.device("meta"):
        model = KINDS[about.kind](about)
    try:
        model.load_state_dict(tensors, strict=True, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"client {about.client}: these tensors are not those of {about.architecture}: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error
    for part in model.modules():
        if isinstance(part, Model):
            part.to(memory_format=part.memory_format)  # type: ignore[call-overload]  # as `build`
    return model.eval()
