"""What the server may not read, it cannot read; what it gets is the bounded mean."""

import numpy as np
import pytest
import torch

from hpcfed.algorithms.trial import check_privacy
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Mean, Params
from hpcfed.engine.decide import world
from hpcfed.engine.setup import federation
from hpcfed.federation.sealed import MeanRule, Sealed, check_open
from hpcfed.federation.transforms.bounded import Bound
from hpcfed.federation.upload import Upload
from tests.contract import toy

CLIPPED = ("--rounds", "2", "--privacy.by", "central", "--privacy.clip", "1", "--privacy.cap", "10")


def sealed() -> Sealed:
    return Sealed(3, Mean.of(Params(w=torch.ones(2))), True, MeanRule())


@pytest.mark.parametrize(
    "read",
    [
        lambda part: part.value,
        lambda part: part + part,
        lambda part: part[0],
        lambda part: list(part),
        lambda part: bool(part),
        lambda part: torch.add(torch.ones(2), part),
        lambda part: torch.stack([torch.ones(2), part]),
        lambda part: torch.cat(tensors=[part, part]),
        lambda part: check_open([torch.ones(2), {"x": (1, [part])}]),
        lambda part: part.terms_for(MeanRule()),
    ],
)
def test_no_expression_reads_a_sealed_part(read):
    with pytest.raises(ConfigError, match="hides what single clients send"):
        read(sealed())


def test_a_method_that_reads_single_uploads_is_refused_before_it_trains():
    job = toy.job("cfl", *CLIPPED, "--algorithm.weighting", "uniform")
    fed = federation(job, Serial(), world(job, Serial()))
    with pytest.raises(ConfigError, match="privacy.by = 'central' hides"):
        check_privacy(fed)


def test_updates_are_shortened_to_the_bound_all_parts_together():
    old = Params(w=torch.tensor([1.0, 1.0]))
    upload = Upload(
        x=Mean.of(Params(w=torch.tensor([4.0, 1.0])), 5.0),
        c=Mean.of(Params(w=torch.tensor([0.0, 4.0])), 20.0),
        relative_to={"x": old},
    )
    sent = Bound(1.0, cap=10).upload(None, None, upload)
    (x,), (c,) = sent["x"].terms, sent["c"].terms
    np.testing.assert_allclose(x.value["w"], [0.6, 0.0], rtol=1e-6)  # (3, 0) and (0, 4), over 5
    np.testing.assert_allclose(c.value["w"], [0.0, 0.8], rtol=1e-6)
    assert (x.weight, c.weight, sent.updates) == (0.5, 1.0, {"x"})


def test_without_a_bound_in_reach_the_mean_is_that_of_the_plain_method():
    flags = ("--rounds", "2", "--models.mix", "mlp", "--participation", "1")
    flags += ("--algorithm.weighting", "uniform")
    far = ("--privacy.by", "central", "--privacy.clip", "1000")
    plain, bounded = (toy.run(Serial(), toy.job("fedavg", *flags, *more)) for more in ((), far))
    for name, value in plain.state.items():
        torch.testing.assert_close(bounded.state[name], value, rtol=1e-5, atol=1e-6)
