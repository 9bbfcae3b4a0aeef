"""A client's trained model for use outside a run: from inputs to scores, or to predicted numbers.

Inputs are those that data sets store. The model needs nothing but this package: no data, no run, no
federation. A method may predict with more than a model; each way of prediction is a class here, and
`KINDS` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpcfed.core.encoder import Encoder
from hpcfed.core.errors import CheckpointError, DataError
from hpcfed.core.inputs import prepare
from hpcfed.core.shapes import Shapes
from hpcfed.models import build, for_shapes
from hpcfed.models.model import Extended, Model, every_tensor, stem
from hpcfed.models.scores import mask_logits, nearest
from hpcfed.tasks import from_facts
from hpcfed.tasks.classification import Classification

GLOBAL = -1  # in the place of a client's number


def moment(rounds: int, before_final: bool, after_final: bool) -> str:
    """Return when a model is from, in words. before_final, after_final: as in `About`."""
    before = ", before the method's final step" * before_final
    return f"after round {rounds}" + before + " and the method's final step" * after_final


@dataclass(frozen=True)
class About:
    """The description of a trained model, in JSON types alone.

    architecture, shape, d, relu_head, vocabulary: as `build` takes them. Architectures of a width
    of their own ignore d; `Trained.width` is that of the model.
    classes: C names of the outputs.
    mean, std: of each channel of the training data, empty for tokens; by modality if `shape` has
    several.
    kind: one of KINDS.  more: the values that this kind needs.
    task: what the labels are (`Task.facts`).
    encoder: what new examples become before they are normalised by mean and std.
    client, name: the client's number and name; GLOBAL for the server's model; "" if it has no name.
    rounds: the number of rounds of training.
    before_final: whether a final step of the method followed, with which the run's last scores were
    made, but whose models are not there: they are damaged, or were adapted afterwards.
    after_final: whether it is a model after that step.
    counted: the column of the results that has its main metric.
    job: all settings that determined the run.
    own: digests of the code of the user's own method and models, by name.
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
    task: dict[str, Any] = field(default_factory=lambda: Classification().facts())
    job: dict[str, Any] = field(default_factory=dict)
    encoder: Encoder = Encoder()  # noqa: RUF009, it is frozen
    name: str = ""
    before_final: bool = False
    after_final: bool = False
    own: dict[str, str] = field(default_factory=dict)

    @property
    def labels(self) -> tuple[str, ...] | tuple[int, ...]:
        """The classes as the data's labels are: names, or integers. Else names of the outputs."""
        return tuple(map(int, self.classes)) if self.encoder.integer_labels else self.classes

    @property
    def moment(self) -> str:
        """When the model is from, in words."""
        return moment(self.rounds, self.before_final, self.after_final)

    def build(self, architecture: str, shape: tuple[int, ...]) -> Model:
        """Return a new model for these classes."""
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
    """A client's model that predicts by its logits.

    forward: inputs [n, *shape] in the form of the data set -> scores [n, C]; for regression numbers
    in the unit of the data. Images are uint8
    (0..255) or floats on the data set's scale, texts are tokens; both are normalised here. A model
    for several modalities takes a dict of them.
    """

    def __init__(self, about: About):
        super().__init__()
        self.about = about
        self.task = from_facts(about.task)
        self.model = about.build(about.architecture, about.shape)

    def forward(self, x: Any) -> Tensor:
        return self.task.predict(self.scores(self.prepare(x)))

    def predict(self, source: Any, id: str = "", fill: bool | None = None) -> Any:
        """Return predictions of new examples as columns by name, for a DataFrame of pandas as one.

        source, fill: see `hpcfed.data.new_examples.Examples`.  id: a column that passes through.
        Raises DataError, with row and column, for examples that the model cannot take.
        """
        from hpcfed.models.predictions import predict_all  # here: tensors need no readers of files

        return predict_all([self], source, id, fill)

    @property
    def width(self) -> int:
        """The width of the representation, which the classifier reads."""
        return int(self.model.head.in_features)

    def prepare(self, x: Any) -> Any:
        """Return inputs in the form that the layers take.

        Raises DataError for inputs of another shape than that of the training data.
        """
        check_inputs(x, self.about)
        return prepare(x, self.about.mean, self.about.std)

    def represent(self, x: Any) -> Tensor:
        """Return representations [n, d], which the classifier reads.

        x: inputs in the form of the data set.
        """
        return self.features(self.prepare(x))

    @property
    def body(self) -> nn.Module:
        """The layers whose output is the representation."""
        return self.model.body

    def features(self, x: Any) -> Tensor:
        """Return representations of prepared inputs."""
        return self.body(x)

    def scores(self, x: Any) -> Tensor:
        """Return scores [n, C] of prepared inputs.

        A model with added parts says itself how they predict.
        """
        return (
            self.model(x) if isinstance(self.model, Extended) else self.classify(self.features(x))
        )

    def classify(self, z: Tensor) -> Tensor:
        """Return scores [n, C] of representations."""
        return self.model.head(z)


class Masked(Trained):
    """A model that has been trained on some classes only.

    more: present, these classes; mask, how the logits of the other classes are replaced.
    """

    def classify(self, z: Tensor) -> Tensor:
        present = np.array(self.about.more["present"], dtype=np.int64)
        return mask_logits(self.model.head(z), present, self.about.more["mask"])


class Framed(Trained):
    """A model whose normalised outputs turn to fixed directions, one of each class.

    frame: [C, C], a column is a direction.
    more: scale, the factor of the cosines.
    """

    def __init__(self, about: About):
        super().__init__(about)
        classes = len(about.classes)
        self.register_buffer("frame", torch.empty(classes, classes))

    def classify(self, z: Tensor) -> Tensor:
        cosines = F.normalize(self.model.head(z)) @ cast(Tensor, self.frame)
        return self.about.more["scale"] * cosines


class Nearest(Trained):
    """A body and prototypes of the classes; the nearest prototype gives the class.

    prototypes: [C, d], nan for a class without one.
    """

    def __init__(self, about: About):
        super().__init__(about)
        self.register_buffer(
            "prototypes", torch.empty_like(self.model.head.weight, requires_grad=False)
        )

    def classify(self, z: Tensor) -> Tensor:
        return nearest(z, cast(Tensor, self.prototypes))


class Served(Trained):
    """The client's first layers, followed by a server's model.

    more: server and shape, the architecture of the server's model and its input shape.
    """

    def __init__(self, about: About):
        super().__init__(about)
        self.server = about.build(about.more["server"], tuple(about.more["shape"]))

    @property
    def width(self) -> int:
        return int(self.server.head.in_features)

    @property
    def body(self) -> nn.Module:
        return self.server.body

    def features(self, x: Tensor) -> Tensor:
        return self.body(stem(self.model.body)[0](x))

    def classify(self, z: Tensor) -> Tensor:
        return self.server.head(z)


def check_inputs(x: Any, about: About) -> None:
    """Raise DataError unless x has the axes and channels of the data; images may be of any size.

    Texts and dicts of modalities are not looked at.
    """
    if isinstance(x, Mapping) or about.vocabulary or isinstance(about.shape, Shapes):
        return
    shape = tuple(about.shape)
    if x.ndim != len(shape) + 1 or x.shape[1] != shape[0]:
        one = x.ndim == len(shape) and shape[0] in (1, x.shape[0])
        axis = 0 if one and x.shape[0] == shape[0] != 1 else 1
        raise DataError(
            f"inputs of shape {list(x.shape)}, but {about.architecture} takes "
            f"[n, {', '.join(map(str, shape))}], examples as the data set has them"
            + (f"; x.unsqueeze({axis}) adds the missing axis" if one else "")
        )


KINDS = {
    "logits": Trained,
    "masked": Masked,
    "framed": Framed,
    "prototypes": Nearest,
    "served": Served,
}


def assemble_model(about: About, tensors: Mapping[str, Tensor]) -> Trained:
    """Return the trained model with these parameters and buffers, in eval mode.

    The model shares the tensors. Random streams stay as they are. Raises CheckpointError if the
    tensors are not those of such a model.
    """
    with for_shapes(about.architecture):
        model = KINDS[about.kind](about)
    unsaved = every_tensor(model).keys() - model.state_dict().keys()
    try:
        model.load_state_dict(
            {name: value for name, value in tensors.items() if name not in unsaved},
            strict=True,
            assign=True,
        )
    except RuntimeError as error:
        raise CheckpointError(
            f"client {about.client}: these tensors are not those of {about.architecture}: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error
    for name in unsaved & tensors.keys():
        path, _, buffer = name.rpartition(".")
        setattr(model.get_submodule(path), buffer, tensors[name])
    for part in model.modules():
        if isinstance(part, Model):
            part.to(memory_format=part.memory_format)  # type: ignore[call-overload]  # as `build`
    return model.eval()
