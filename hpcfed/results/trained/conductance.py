"""Which units of the representation a prediction rests on: layer conductance at the classifier.

Dhamdhere et al., ICLR 2019, arXiv:1805.12233; figure 9 of Jang et al. (FedClassAvg), ICPP 2022.
Open there, and chosen
here: the baseline is the mean image (0 after normalisation), the score is that of the image's
label.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpcfed.core.extras import import_extra
from hpcfed.core.few import evenly
from hpcfed.models.trained import Trained

STEPS = 50  # of the path from the baseline to the image
IMAGES = 4  # so many, each of another class


def choose_images(labels: np.ndarray) -> np.ndarray:
    """The first example of each of IMAGES classes, evenly chosen: positions [M], ascending by
    class. They depend on nothing but the labels [N], so that all runs on the same data are asked
    about the same ones.
    """
    _, first = np.unique(labels, return_index=True)
    return first[evenly(len(first), IMAGES)]


def conductance(model: Trained, x: Tensor, labels: np.ndarray) -> np.ndarray:
    """The conductance of each unit of the representation, [M, d], for the scores of these labels;
    x: M inputs, as stored.
    """
    library = import_extra("captum.attr", "models", "layer conductance")
    method = library.LayerConductance(model.scores, model.body)
    target = torch.as_tensor(labels, dtype=torch.int64)
    return method.attribute(model.prepare(x), target=target, n_steps=STEPS).detach().numpy()
