"""The task of `private.py`: needs only numpy and torch, for it runs in both environments.

The form of pfl-research's benchmark on CIFAR-10 (Granqvist et al., NeurIPS 2024, arXiv:2404.06430):
1,000 clients with 50 images each, one local epoch in batches of 10, SGD, updates clipped to 0.4,
Gaussian noise at the server. Theirs has 50 clients in a round and noise of a cohort that is 20
times as large; here 100 clients take part, with a network of 19,000 parameters, so that the noise
is that of the cohort itself.
"""

from __future__ import annotations

from torch import nn

CLIENTS, EXAMPLES, COHORT, BATCH, ROUNDS, LR = 1000, 50, 100, 10, 40, 0.1
CLIP, EPSILON, DELTA = 0.4, 8.0, 1e-5
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def layers() -> nn.Sequential:
    """The layers before the head: features [n, 512] of images [n, 3, 32, 32]."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )


def network() -> nn.Sequential:
    """The network with its head of ten classes."""
    return nn.Sequential(*layers(), nn.Linear(512, 10))


def body(shape: tuple[int, ...], d: int) -> nn.Module:
    """The same network without its head, as hpcfed takes models; d is 512."""
    return layers()
