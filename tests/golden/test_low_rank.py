"""FedKD's compression and loss by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import tensor

from hpcfed.algorithms.proxies.fedkd import FedKD
from hpcfed.algorithms.proxies.lowrank import needed_rank, pack, unpack
from hpcfed.core.params import Params
from hpcfed.tasks.classification import Classification

CLIENT = SimpleNamespace(task=Classification())


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_a_rank_is_the_smallest_that_has_the_energy_and_one_at_least():
    s = tensor([3.0, 1.0, 0.0])  # squares 9 and 1 of 10
    assert [needed_rank(s, share) for share in (1e-9, 0.9, 0.91, 1.0)] == [1, 1, 2, 2]
    assert needed_rank(torch.zeros(3), 1.0) == 1


def test_a_matrix_of_rank_one_travels_as_two_vectors_and_a_number():
    value = torch.outer(draw(8), draw(20))
    packed = pack({"w": value}, 0.999)
    assert {name: tuple(v.shape) for name, v in packed.items()} == {
        "w/u": (8, 1),
        "w/s": (1,),
        "w/v": (1, 20),
    }
    assert packed.nbytes == 4 * (8 + 20 + 1)
    assert torch.allclose(unpack(packed, {"w": value})["w"], value, atol=1e-5)


def test_all_of_the_energy_gives_the_values_back():
    values = Params(w=draw(6, 5), kernel=draw(4, 3, 3, 3), bias=draw(7))
    assert pack(values, 1.0).keys() == values.keys()  # factors of full rank would be longer
    low = Params(w=draw(30, 2) @ draw(2, 30))
    assert torch.allclose(unpack(pack(low, 1.0), low)["w"], low["w"], atol=1e-4)


def test_kernels_of_convolutions_are_matrices_of_outputs_and_all_else():
    kernel = torch.outer(draw(16), draw(8 * 9)).reshape(16, 8, 3, 3)
    packed = pack({"k": kernel}, 0.999)
    assert packed["k/u"].shape == (16, 1) and packed["k/v"].shape == (1, 72)
    assert torch.allclose(unpack(packed, {"k": kernel})["k"], kernel, atol=1e-5)
    last = kernel.to(memory_format=torch.channels_last)
    assert torch.allclose(unpack(pack({"k": last}, 0.999), {"k": last})["k"], kernel, atol=1e-5)


def twin(private: torch.Tensor, proxy: torch.Tensor) -> SimpleNamespace:
    """A pair whose representations are these logits."""
    parts = (SimpleNamespace(body=lambda x, z=z: z, head=lambda z: z) for z in (private, proxy))
    return SimpleNamespace(**dict(zip(("own", "proxy"), parts, strict=True)))


def test_fedkds_terms_are_divided_by_both_cross_entropies_which_are_constants_there():
    private = torch.zeros(1, 2, requires_grad=True)
    proxy = tensor([[math.log(3.0), 0.0]], requires_grad=True)  # soft (.75, .25)
    pair, y = twin(private, proxy), tensor([0])
    value = FedKD(hidden="none").loss(CLIENT, Params(), pair, None, y)
    supervised = math.log(2) + math.log(4 / 3)
    to_proxy = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    to_own = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert value.item() == pytest.approx(supervised + (to_proxy + to_own) / supervised)
    slopes = torch.autograd.grad(value, (private, proxy))
    assert slopes[0][0, 1].item() == pytest.approx(0.5 + 0.25 / supervised)  # no term of 1 / L
    assert slopes[1][0, 1].item() == pytest.approx(0.25 - 0.25 / supervised)


def test_fedkds_hidden_term_maps_the_common_representation():
    private, proxy = torch.zeros(1, 2), torch.full((1, 2), 1.0)
    pair, y = twin(private, proxy), tensor([0])
    values = {
        hidden: FedKD(hidden=hidden)
        .loss(CLIENT, Params(projection=3 * torch.eye(2)), pair, None, y)
        .item()
        for hidden in ("none", "plain", "projected")
    }
    divisor = 2 * math.log(2)
    assert values["plain"] - values["none"] == pytest.approx(1 / divisor)
    assert values["projected"] - values["none"] == pytest.approx(9 / divisor)
    twice = FedKD(hidden="plain", hidden_weight=2).loss(CLIENT, Params(), pair, None, y).item()
    assert twice - values["none"] == pytest.approx(2 / divisor)  # as the authors' code
