"""The measures of training/similarity.py: values by hand, what they must not notice, gradients."""

import math

import pytest
import torch
from torch import Tensor

from hpcfed.core import rng
from hpcfed.training import similarity
from hpcfed.training.similarity import (
    centre_kernel,
    cka,
    cka_to_kernel,
    linear_cka,
    normalise_kernel,
    procrustes,
    rbf_kernel,
)

A = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)  # columns of mean 0
B = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
CONSTANT = torch.full((7, 3), 0.1, dtype=torch.float64)


def draw(*shape: int, key: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=rng.torch_stream(1, "similarity", key))


def rotation(d: int) -> Tensor:
    return torch.linalg.qr(draw(d, d, key=9))[0]


def linear(a: Tensor, b: Tensor) -> Tensor:
    """CKA by two kernels, as the paper writes it."""
    return cka(a @ a.T, b @ b.T)


def to_kernel(a: Tensor, b: Tensor) -> Tensor:
    return cka_to_kernel(a, normalise_kernel(b @ b.T))


def rbf(a: Tensor, b: Tensor) -> Tensor:
    return cka(rbf_kernel(a), rbf_kernel(b))


MEASURES = {
    "features": linear_cka,
    "kernels": linear,
    "to a kernel": to_kernel,
    "rbf": rbf,
    "procrustes": lambda a, b: 1 - procrustes(a, b) / 2,
}
LINEAR = ("features", "kernels", "to a kernel")
each_measure = pytest.mark.parametrize("like", MEASURES.values(), ids=MEASURES.keys())
each_linear = pytest.mark.parametrize("like", [MEASURES[name] for name in LINEAR], ids=LINEAR)


@each_linear
def test_linear_cka_by_hand(like):
    # A^T A = [[2, 1], [1, 2]], of length sqrt(10); B^T B = [[2, 0], [0, 0]]; B^T A = [[1, -1], [0,
    # 0]]
    assert like(A, B).item() == pytest.approx(2 / (math.sqrt(10) * 2), rel=1e-14)


def test_hsic_of_the_paper_by_its_trace():
    k, other, h = A @ A.T, B @ B.T, torch.eye(3, dtype=torch.float64) - 1 / 3

    def hsic(a: Tensor, b: Tensor) -> float:
        return (a @ h @ b @ h).trace().item() / (3 - 1) ** 2

    want = hsic(k, other) / math.sqrt(hsic(k, k) * hsic(other, other))
    assert cka(k, other).item() == pytest.approx(want, rel=1e-12)


def test_a_centred_kernel_by_hand():
    kernel = torch.tensor([[4.0, 2.0], [2.0, 8.0]])  # rows' means 3 and 5, of all 4
    assert centre_kernel(kernel).tolist() == [[2.0, -2.0], [-2.0, 2.0]]


def test_the_rbf_kernel_by_hand():
    kernel = rbf_kernel(
        torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64), c=0.5
    )  # distances 1, 2, 3: sigma 1
    one, two, three = (math.exp(-(x**2) / 2) for x in (1, 2, 3))
    want = [[1, one, three], [one, 1, two], [three, two, 1]]
    assert torch.allclose(kernel, torch.tensor(want, dtype=torch.float64), rtol=1e-14)


def test_if_most_rows_coincide_the_mean_square_gives_the_width():
    kernel = rbf_kernel(
        torch.tensor([[0.0]] * 4 + [[1.0]], dtype=torch.float64)
    )  # 6 distances 0, 4 of 1: sigma^2 0.4
    assert kernel[0, 4].item() == pytest.approx(math.exp(-1 / 0.8)) and kernel[0, 1].item() == 1.0


def test_procrustes_by_hand():
    # lengths 2 and sqrt(2); A^T B = [[1, 0], [-1, 0]] has the singular values sqrt(2) and 0
    assert procrustes(A, B).item() == pytest.approx(
        2 - 2 * math.sqrt(2) / (2 * math.sqrt(2)), rel=1e-14
    )


@each_measure
def test_the_same_rotated_scaled_and_shifted_is_the_same(like):
    a = draw(40, 5)
    rotated = -3.0 * a @ rotation(5) + draw(1, 5, key=2)
    assert like(a, a).item() == pytest.approx(1, rel=1e-9) and like(
        a, rotated
    ).item() == pytest.approx(1, rel=1e-9)


@each_measure
def test_a_and_b_may_change_places(like):
    a, b = draw(30, 4), draw(30, 4, key=1)
    assert like(a, b).item() == pytest.approx(like(b, a).item(), rel=1e-10) and 0 < like(a, b) < 1


@pytest.mark.parametrize("widths", [(3, 8), (8, 3), (60, 50), (5, 200)])
def test_all_forms_of_linear_cka_agree_for_any_widths(widths: tuple[int, int]):
    a, b = draw(20, widths[0]) + 2, draw(20, widths[1], key=1)
    assert {round(MEASURES[name](a, b).item(), 12) for name in LINEAR} == {
        round(linear_cka(a, b).item(), 12)
    }


@pytest.mark.parametrize("like", [linear_cka, rbf])
def test_independent_noise_of_many_examples_is_unlike(like):
    assert like(draw(2000, 4), draw(2000, 4, key=1)) < 0.05


def test_float32_is_as_good_as_its_precision_for_large_offsets_and_large_values():
    a, b = draw(300, 8), draw(300, 6, key=1)
    want = linear_cka(a, b).item()
    for far in ((a + 30).float(), (a * 1e12).float(), (a * 1e-12).float()):
        assert linear_cka(far, b.float()).item() == pytest.approx(want, rel=1e-4)


@each_measure
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_features_are_unlike_any_but_constant_ones_and_have_no_gradient(like, dtype):
    a, b = CONSTANT.to(dtype).requires_grad_(), draw(7, 3).to(dtype).requires_grad_()
    both = like(a, (CONSTANT * 5).to(dtype))
    assert both.item() == 1.0 and like(a, b).item() == (0.5 if procrustes_of(like) else 0.0)
    (like(a, b) + both).backward()
    assert a.grad.tolist() == torch.zeros(7, 3).tolist() and b.grad.abs().max() < 1e-5


def procrustes_of(like) -> bool:
    return (
        like is MEASURES["procrustes"]
    )  # 1 - d / 2 with d = 1 + 0 - 0: a constant one has length 0


@each_measure
def test_one_example_is_constant(like):
    assert like(draw(1, 3), draw(1, 3, key=1)).item() == 1.0


@each_measure
def test_equal_representations_have_no_gradient(like):
    a = draw(25, 4).requires_grad_()
    like(a, a.detach()).backward()
    assert a.grad.abs().max() < 1e-12


@each_measure
def test_gradients_are_right(like):
    a, b = draw(7, 3).requires_grad_(), draw(7, 3, key=1).requires_grad_()
    if like is rbf:  # sigma has no gradient: hold it still
        inner = [
            similarity.precision(similarity.squared_distances(v, v).detach(), 1.0) for v in (a, b)
        ]

        def like(a: Tensor, b: Tensor) -> Tensor:
            kernels = [
                torch.exp(-p * similarity.squared_distances(v, v))
                for p, v in zip(inner, (a, b), strict=True)
            ]
            return cka(*kernels)

    assert torch.autograd.gradcheck(like, (a, b))


def test_the_gradient_of_the_rbf_kernel_is_that_of_a_fixed_width():
    a = draw(6, 2).requires_grad_()
    width = similarity.precision(similarity.squared_distances(a, a).detach(), 2.0)
    ours, fixed_ = rbf_kernel(a, 2.0), torch.exp(-width * torch.cdist(a, a).square())
    weights = draw(6, 6, key=3)
    pairs = [torch.autograd.grad((k * weights).sum(), a)[0] for k in (ours, fixed_)]
    assert torch.allclose(*pairs, rtol=1e-9)


@each_measure
def test_values_that_are_not_finite_are_not_hidden(like):
    a = draw(7, 3)
    a[2, 1] = torch.nan
    assert torch.isnan(like(a, draw(7, 3, key=1)))
