"""Every method in rounds can be planned: what it demands of a cluster follows from the job
alone.
"""

import numpy as np
import pytest

from hpcfed.algorithms import ALGORITHMS, load
from hpcfed.algorithms.base import RoundBased
from hpcfed.comm import Serial
from hpcfed.launch.plan.costs import Costs
from hpcfed.launch.plan.demand import WHOLE, demand
from hpcfed.launch.plan.network import Network
from hpcfed.launch.plan.predict import Cluster, predict
from tests.contract import toy

ROUNDS = [name for name in ALGORITHMS if issubclass(load(name), RoundBased)]


class Same(dict):
    """A thousandth of a second for an example of any architecture."""

    def __missing__(self, kind: str) -> float:
        return 1e-3

    def __contains__(self, kind: object) -> bool:
        return True


@pytest.mark.parametrize("method", ROUNDS)
def test_every_method_in_rounds_can_be_planned(method: str):
    fed = toy.start(Serial(), toy.job(method)).fed
    costs = Costs(
        Same(),
        evaluate=0.5,
        rest=0.0,
        server=0.0,
        peak=0.0,
        gpu=0.0,
        held=[],
        cores=2,
        processor="",
        job={},
    )
    asked = demand(fed, np.array(toy.TESTS), costs)
    first = [k for ks in asked.cohorts[0] for k in ks]
    sent = [fed.job.algorithm.traffic(fed, k)[1] for k in first]
    assert (4 * asked.values, asked.uploads) == (
        (0, sum(sent)) if method in WHOLE else (max(sent), 0)
    )
    assert np.allclose(asked.train, 1e-3 * np.array(toy.SIZES) * fed.job.local.epochs)
    one, three = (predict(asked, Cluster(nodes, 1, 1, Network(0.0, 1e9))).parts for nodes in (1, 3))
    assert one["train"] == pytest.approx(3 * three["train"]) and one["wait"] == 0 <= three["wait"]
