"""Which units of the representation a prediction rests on: layer conductance at the classifier.

Dhamdhere et al., ICLR 2019, arXiv:1805.12233; figure 9 of Jang et al. (FedClassAvg), ICPP 2022.
Open there, and chosen
here: the baseline is the mean image (0 after normalisation), the score is that of the image's
label.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from hpcfed.extras import needed
from hpcfed.models.trained import Trained

NOTHING = np.zeros(0, np.float32)  # of a client that is wrong about the image
STEPS = 50  # of the path from the baseline to the image


def shared_image(predictions: np.ndarray, labels: np.ndarray, text: bool = False) -> int:
    """The position of the example that most clients are right about, of equals the first; -1 where
    none is right.

    predictions: [K, N].  labels: [N].  text: tokens are no numbers, and nothing lies between two of
    them.
    """
    right = (predictions == labels).sum(0)
    return -1 if text or not right.any() else int(right.argmax())


def conductance(model: Trained, x: Tensor, label: int) -> np.ndarray:
    """The conductance of each unit of the representation, [d], for the score of this label; x: one
    input, as stored.
    """
    library = needed("captum.attr", "models", "layer conductance")
    method = library.LayerConductance(model.scores, model.body)
    return method.attribute(model.prepare(x[None]), target=label, n_steps=STEPS)[0].detach().numpy()
