"""Membership inference by a threshold on the loss: was an example in a client's training data?

Yeom et al., CSF 2018, arXiv:1709.01604: examples that a model was trained on have lower losses.
The area under the ROC curve is the probability that a member's loss is below that of another
example, ties counted half; 0.5 is guessing. The advantage is the largest difference of the true and
the false positive rate over all thresholds. The true positive rate at a small false positive rate
says whether some members can be told with confidence (Carlini et al., IEEE S&P 2022,
arXiv:2112.03570).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FALSE_POSITIVES = 0.01  # rate at which the true positive rate is reported


class Membership(NamedTuple):
    """How well losses tell members from other examples.

    tpr: true positive rate at the false positive rate FALSE_POSITIVES.
    """

    auc: float
    advantage: float
    tpr: float


def measure(members: np.ndarray, others: np.ndarray) -> Membership:
    """Return the success of all thresholds.  members, others: losses [n], [m]; neither is empty."""
    from sklearn.metrics import roc_auc_score, roc_curve

    member = np.repeat([1, 0], [len(members), len(others)])
    losses = np.concatenate([members, others])
    scores = -np.nan_to_num(losses, nan=np.finfo(losses.dtype).max)
    false, true, _ = roc_curve(member, scores, drop_intermediate=False)
    return Membership(
        float(roc_auc_score(member, scores)),
        float((true - false).max()),
        float(true[false <= FALSE_POSITIVES].max()),
    )
