"""The CNN of the FedAvg paper: McMahan et al., AISTATS 2017, arXiv:1602.05629, section 3."""

from torch import nn


def cnn(shape: tuple[int, ...], d: int) -> nn.Module:
    """Two 5x5 convolutions with 2x2 max-pooling, then d units with ReLU: [n, c, h, w] -> [n, d].

    The representation is >= 0. With d = 512, 10 classes and 28x28 grey images the model has the
    paper's 1,663,370 parameters (head included); this implies that the convolutions keep the image
    size.
    Deviations: none.
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), d),
        nn.ReLU(inplace=True),
    )
