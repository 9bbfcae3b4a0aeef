"""Networks whose upper layers are divided into groups, each of which serves some classes: Fed2.

From some layer on, each group of a convolution or linear layer reads only the same group of the
layer before. The logit of a class reads the features of its group alone, so its gradient reaches no
other group. Yu et al. (Fed2), KDD 2021, arXiv:2111.14248.
"""

import numpy as np
import torch
from torch import Tensor, nn

from hpcfed import ConfigError, Model
from hpcfed.models.model import Head

# layers in which an output channel depends only on the same input channel, or that are divided
LEAVES = (
    *(nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten),
    *(nn.Dropout, nn.Identity, nn.BatchNorm2d, nn.Conv2d, nn.Linear),
)
ROWS = (
    "Sequential",
    "Bottleneck",
    "BasicBlock",
    "ResNet",
)  # modules that run or add their children


class GroupLinear(nn.Linear):
    """Linear layers side by side: [n, inputs] -> [n, outputs].

    Group g of the outputs is computed from group g of the inputs. weight: [outputs, inputs /
    groups].
    """

    def __init__(self, inputs: int, outputs: int, groups: int):
        super().__init__(inputs // groups, outputs)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(1, (self.groups, -1)).transpose(0, 1)
        outputs = parts @ self.weight.unflatten(0, (self.groups, -1)).transpose(1, 2)
        return outputs.transpose(0, 1).flatten(1) + self.bias


class GroupHead(Head):
    """A head whose logits, [n, C], read only the features of their class's group.

    weight: [C, d / groups].
    """

    def __init__(self, d: int, classes: int, relu: bool, groups: int):
        super().__init__(d // groups, classes, relu)
        self.in_features, self.groups = d, groups
        counts = np.bincount(class_groups(classes, groups), minlength=groups)
        self.classes = counts.tolist()  # of each group

    def forward(self, z: Tensor) -> Tensor:
        z = torch.relu(z) if self.relu else z
        parts = z.unflatten(1, (self.groups, -1)).split(1, 1)  # [n, 1, d / groups] each
        # views alone: an index would be copied to a GPU in each step
        features = [v.expand(-1, n, -1) for v, n in zip(parts, self.classes, strict=True)]
        return (torch.cat(features, 1) * self.weight).sum(2) + self.bias


def class_groups(classes: int, groups: int) -> np.ndarray:
    """Return the group of each class, [C]; neighbouring classes share one."""
    return np.arange(classes) * groups // classes


def divide(model: Model, groups: int, depth: int) -> Model:
    """Divide all layers above the first `depth` layers into groups, and return the model.

    GroupNorm replaces batch normalisation everywhere. The weights of new layers are drawn. Raises
    ConfigError for a body in which groups would mix, or widths that cannot be divided.
    """
    body, n_layers = model.body, 0
    containers = {type(m).__name__ for m in body.modules() if list(m.children())} | {"Sequential"}
    strange = {type(m).__name__ for m in body.modules() if not known_layer(m)} - set(ROWS)
    if strange or not containers <= set(ROWS):
        names = ", ".join(sorted(strange | (containers - set(ROWS))))
        raise ConfigError(
            f"fed2 divides rows of layers and residual blocks, but the model has {names}, in which "
            f"groups may mix; use cnn, resnet18 or another row of layers"
        )
    if groups > model.head.out_features:
        raise ConfigError(
            f"algorithm.groups = {groups} is more than there are classes, "
            f"{model.head.out_features}; give each group one class at least"
        )
    for path, layer in list(body.named_modules()):
        parent, name = body.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        if isinstance(layer, nn.BatchNorm2d):
            check_divisible(path, layer.num_features, groups)
            norm = nn.GroupNorm(groups, layer.num_features, layer.eps)
            norm.divided = n_layers > depth  # type: ignore[assignment]
            setattr(parent, name, norm)
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            n_layers += 1
            if n_layers > depth:
                setattr(parent, name, divided(path, layer, groups))
    if n_layers <= depth:
        raise ConfigError(
            f"algorithm.depth = {depth} leaves no layer of the body to divide, which has "
            f"{n_layers}; set a smaller depth"
        )
    d, classes = model.head.in_features, model.head.out_features
    model.head = GroupHead(d, classes, model.head.relu, groups)
    return model


def known_layer(module: nn.Module) -> bool:
    """Return whether a module keeps groups apart, as far as the module alone decides."""
    if list(module.children()):
        return type(module).__name__ in ROWS
    return isinstance(module, LEAVES) and getattr(module, "groups", 1) == 1


def divided(path: str, layer: nn.Conv2d | nn.Linear, groups: int) -> nn.Module:
    """Return a new layer of the same widths, in groups."""
    if isinstance(layer, nn.Linear):
        for width in (layer.in_features, layer.out_features):
            check_divisible(path, width, groups)
        return GroupLinear(layer.in_features, layer.out_features, groups)
    for width in (layer.in_channels, layer.out_channels):
        check_divisible(path, width, groups)
    return nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,  # type: ignore[arg-type]
        layer.stride,  # type: ignore[arg-type]
        layer.padding,  # type: ignore[arg-type]
        groups=groups,
        bias=layer.bias is not None,
    )


def check_divisible(path: str, width: int, groups: int) -> None:
    """Raise ConfigError for a width that is not a multiple of the number of groups."""
    if width % groups:
        raise ConfigError(
            f"algorithm.groups = {groups}: layer body.{path} has a width of {width}, no multiple "
            f"of it; set groups (or models.d) so that it divides each width above algorithm.depth"
        )


def row_groups(model: Model) -> dict[str, np.ndarray]:
    """Return the group of each row of the tensors in the divided part, by name."""
    by_name = {}
    for path, module in model.named_modules():
        groups = getattr(module, "groups", 1)
        if isinstance(module, nn.GroupNorm):
            groups = module.num_groups if module.divided else 1
        if groups == 1:
            continue
        for name, value in module.named_parameters(recurse=False):
            rows = len(value)
            by_name[f"{path}.{name}"] = (
                np.repeat(np.arange(module.groups), module.classes)
                if isinstance(module, GroupHead)
                else np.arange(rows) * groups // rows
            )
    return by_name
