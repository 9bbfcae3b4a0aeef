"""Models for inputs of any shape: a small multi-layer perceptron and logistic regression."""

import math

from torch import nn

HIDDEN = 200  # as the 2NN of McMahan et al., AISTATS 2017, arXiv:1602.05629, section 3


def mlp(shape: tuple[int, ...], d: int) -> nn.Module:
    """One hidden layer of 200 units with ReLU, then d linear units: [n, *shape] -> [n, d]."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), HIDDEN),
        nn.ReLU(inplace=True),
        nn.Linear(HIDDEN, d),
    )


def logistic(shape: tuple[int, ...], d: int) -> nn.Module:
    """Logistic regression: the body flattens the input, so that only the head learns.

    The width of the representation is the input size and not d. The objective is convex; it is
    the testbed of Li et al., MLSys 2020, arXiv:1812.06127, section 5.
    """
    return nn.Flatten()
