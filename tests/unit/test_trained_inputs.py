"""A trained model says what it takes if it gets something else."""

import pytest
import torch

from hpcfed.core.errors import DataError
from hpcfed.models.trained import About, Trained

pytestmark = pytest.mark.quick


def trained(shape: tuple[int, ...], mean=(0.3,), architecture: str = "cnn") -> Trained:
    about = About(architecture, shape, ("a", "b"), 16, True, 0, mean, mean, 0, 1, "")
    return Trained(about).eval()


@pytest.mark.parametrize(
    "shape, advice",
    [
        ((2, 16, 16), "inputs of shape [2, 16, 16], but cnn takes [n, 1, 16, 16]"),
        ((2, 16, 16), "x.unsqueeze(1) adds the missing axis"),
        ((2, 16, 16, 1), "inputs of shape [2, 16, 16, 1], but cnn takes [n, 1, 16, 16]"),
        ((16, 16), "inputs of shape [16, 16]"),
    ],
)
def test_inputs_of_other_axes_are_one_message(shape, advice):
    with pytest.raises(DataError) as refusal:
        trained((1, 16, 16))(torch.zeros(shape, dtype=torch.uint8))
    assert advice in str(refusal.value)


def test_one_example_without_its_axis_is_refused_with_the_axis_to_add():
    with pytest.raises(DataError, match=r"x.unsqueeze\(0\)"):
        trained((3, 16, 16), (0.3,) * 3)(torch.zeros(3, 16, 16))


def test_examples_as_the_data_have_them_are_taken():
    model = trained((1, 16, 16))
    assert model(torch.zeros(2, 1, 16, 16, dtype=torch.uint8)).shape == (2, 2)
    assert model.represent(torch.zeros(2, 1, 16, 16)).shape == (2, model.width)


def test_the_width_is_that_of_the_model_and_not_what_the_job_asked_for():
    model = trained((3, 16, 16), (0.3,) * 3, "torchvision:resnet18")
    assert (model.about.d, model.width) == (16, 512)
