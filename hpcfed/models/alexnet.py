"""FedClassAvg's small AlexNet, after Krizhevsky et al., NeurIPS 2012, for images of about 32x32."""

from torch import nn


def alexnet(shape: tuple[int, ...], d: int) -> nn.Module:
    """Three convolutions and two fully connected layers, no batch norm: [n, c, h, w] -> [n, d].

    Jang et al., ICPP 2022, section 4.1 ("a custom implementation"), layers as in the authors' code.
    Deviations: none; the text says one fully connected layer in the body, their code has two.
    """
    return nn.Sequential(
        nn.Conv2d(shape[0], 64, 3, padding="same"),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, stride=1, padding=1),  # grows by one: 28 -> 29
        nn.Conv2d(64, 128, 3, padding="same"),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, stride=2, padding=1),  # 29 -> 15
        nn.Conv2d(128, 256, 3, padding="same"),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(256 * 3 * 3, 512),
        nn.ReLU(inplace=True),
        nn.Linear(512, d),
    )
