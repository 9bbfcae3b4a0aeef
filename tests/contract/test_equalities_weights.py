"""FedLAW, whose server learns the weights of models: golden values, FedAvg, and two rounds in plain
torch.
"""

import numpy as np
import pytest
import torch

from hpcfed.algorithms.clusters.clusters import stack
from hpcfed.algorithms.global_model.fedlaw import combine
from hpcfed.core import rng
from hpcfed.core.params import Params
from hpcfed.training.batches import batches
from tests.contract import toy
from tests.contract.referee import TWO, Referee
from tests.contract.test_equalities import near, run


def test_combinations_by_hand_and_their_gradient_by_gamma():
    models = stack(
        [
            Params(w=torch.tensor([1.0, 2.0]), v=torch.tensor([4.0])),
            Params(w=torch.tensor([5.0, 6.0]), v=torch.tensor([8.0])),
        ]
    )
    weights = Params(a=torch.tensor([1.0, 3.0]).log(), b=torch.tensor(2.0).log())
    leaves = {name: v.requires_grad_() for name, v in weights.items()}
    w = combine(models, weights, lambda name: name == "w")
    assert w["w"].tolist() == pytest.approx([8.0, 10.0]) and w["v"].item() == pytest.approx(7)
    w["w"].retain_grad()
    w["w"].square().sum().backward()
    inner = (w["w"].grad * w["w"]).sum()
    assert leaves["b"].grad.item() == pytest.approx(inner.item())
    assert not w["v"].requires_grad


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedlaw_that_learns_nothing_is_fedavg_to_the_bit(weighting: str):
    flags = ("--models.mix", "small", "--algorithm.weighting", weighting)
    ours, theirs = run("fedlaw", "--algorithm.server_epochs", "0", *flags), run("fedavg", *flags)
    assert toy.differences(ours.state, theirs.state) == []
    slow = ("--algorithm.server_epochs", "1", "--algorithm.server_lr", "1e-12")
    flags = ("--models.mix", "mlp", "--algorithm.weighting", weighting)
    assert near(run("fedlaw", *slow, *flags).state, run("fedavg", *flags).state, 1e-5)


def test_two_rounds_of_fedlaw_in_plain_torch():
    flags = ("--algorithm.server_epochs", "6", "--algorithm.server_lr", "0.2")
    more = ("--algorithm.halve_epochs", "2", "--algorithm.server_batch", "12")
    referee = Referee("fedlaw", *TWO, *flags, *more)
    w, fed = referee.initial(), referee.fed
    x, y = fed.public.batch(np.arange(len(fed.public)))
    x = fed.prepare(x)
    for t, cohort in enumerate(referee.run()):
        models = [referee.train(k, w) for k in cohort]
        n = torch.tensor([float(toy.SIZES[k]) for k in cohort])
        a = (n / n.sum()).log().requires_grad_()
        b = torch.zeros((), requires_grad=True)
        adam = torch.optim.Adam([a, b], 0.2, (0.5, 0.999))
        halved = torch.optim.lr_scheduler.StepLR(adam, 2 * 3, 0.5)
        plan = batches(32, 12, 18, True, rng.stream(fed.seed, "weights", t, "batches"))

        def mix(models=models, a=a, b=b) -> Params:
            lam = a.exp() / a.exp().sum()
            parts = [b.exp() * lam[i] * model for i, model in enumerate(models)]
            return Params({n: sum(part[n] for part in parts) for n in parts[0]})

        for rows in plan:
            adam.zero_grad()
            at = torch.from_numpy(np.asarray(rows))
            model = referee.model.train()
            z = torch.func.functional_call(model, dict(mix()), (x[at],))
            torch.nn.functional.cross_entropy(z, y[at]).backward()
            adam.step()
            halved.step()
        w = mix().clone()
        assert b.item() != 0
    assert near(referee.rounds.state, w, 1e-5)
