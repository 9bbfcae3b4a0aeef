"""Augmentation: torchvision's formulas, all draws from the given generator, no example depends on
another.
"""

import pytest
import torch
from torch.nn.functional import affine_grid, grid_sample

from hpcfed.core.compat import import_torchvision
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.inputs import prepare
from hpcfed.core.rng import torch_stream
from hpcfed.data import colour
from hpcfed.data.affine import warp
from hpcfed.data.augment import POLICIES, crop_flip, simclr, views
from hpcfed.data.crop import DRAWS, RATIO, SCALE, _boxes, crop, resized_crop, uniform
from tests.on_device import Launches


@pytest.fixture(scope="module")
def reference():
    import_torchvision()
    from torchvision.transforms.v2 import functional

    return functional


def images(n=6, channels=3, height=12, width=12) -> torch.Tensor:
    return torch.rand(n, channels, height, width, generator=torch_stream(0, "images"))


def pixels(n=6, channels=3, height=12, width=12) -> torch.Tensor:
    return (images(n, channels, height, width) * 255).round().to(torch.uint8)


def stats(channels: int) -> tuple[list[float], list[float]]:
    return [0.5] * channels, [0.25] * channels


def test_prepare_scales_bytes_to_one_and_leaves_floats_on_their_scale():
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1)
    assert prepare(x, [0.2], [0.4]).flatten().tolist() == pytest.approx([-0.5, 0.0, 2.0])
    assert prepare(torch.full((1, 1, 1, 1), 3.0).double(), [1.0], [2.0]).item() == 1.0
    assert prepare(x, [0.2], [0.4]).dtype == torch.float32


def test_prepare_refuses_another_number_of_channels():
    with pytest.raises(DataError, match="3 channels, but 1 means"):
        prepare(images(), [0.5], [0.5])


@pytest.mark.parametrize(
    "name, factors",
    [
        ("adjust_brightness", [0.6, 1.0, 1.4]),
        ("adjust_contrast", [0.6, 1.0, 1.4]),
        ("adjust_saturation", [0.6, 1.0, 1.4]),
        ("adjust_hue", [-0.1, 0.0, 0.1, 0.33, -0.33]),
    ],
)
def test_changes_of_colour_are_torchvisions(reference, name, factors):
    x = images(len(factors))
    x[:, :, 0, :3] = torch.tensor([0.0, 0.5, 1.0])  # black, grey, white
    x[:, :2, 1] = 0.7  # two equal largest channels
    x[:, 1:, 2], x[:, 0, 2] = 0.7, 0.2  # cyan, where green and blue are equal and red is less
    got = getattr(colour, f"{name}_")(x.clone(), torch.tensor(factors))
    want = torch.stack([getattr(reference, name)(x[i], f) for i, f in enumerate(factors)])
    torch.testing.assert_close(got, want, atol=2e-6, rtol=0)


def test_contrast_of_one_channel_is_torchvisions(reference):
    x = images(2, 1)
    want = torch.stack([reference.adjust_contrast(x[i], f) for i, f in enumerate((0.6, 1.4))])
    torch.testing.assert_close(colour.adjust_contrast_(x.clone(), torch.tensor([0.6, 1.4])), want)


def test_jitter_draws_of_one_half_change_nothing_and_grey_is_torchvisions(reference):
    draws = torch.full((6, 6), 0.5)
    torch.testing.assert_close(
        colour.jitter_(images(), [3, 1, 0, 2], draws), images(), atol=1e-6, rtol=0
    )
    draws[:, 5] = 0.1
    grey = colour.jitter_(images(), [0, 1, 2, 3], draws)
    torch.testing.assert_close(grey, reference.rgb_to_grayscale(images(), 3), atol=1e-6, rtol=0)


def test_jitter_leaves_one_image_in_five_alone_and_greys_one_in_five():
    draws = uniform(torch_stream(1, "d"), 4000, 6, torch.device("cpu"))
    x = images(1, height=2, width=2).expand(4000, -1, -1, -1)
    same = (colour.jitter_(x.clone(), [0, 1, 2, 3], draws) - x).abs().amax((1, 2, 3)) < 1e-5
    grey = colour.jitter_(x.clone(), [0, 1, 2, 3], draws).std(1).amax((1, 2)) < 1e-5
    assert abs(same.float().mean() - 0.2 * 0.8) < 0.03 and abs(grey.float().mean() - 0.2) < 0.03


@pytest.mark.parametrize("box", [(0, 0, 12, 12), (2, 3, 6, 8), (11, 0, 1, 12), (5, 7, 7, 5)])
def test_a_crop_is_torchvisions_resized_crop(reference, box):
    x, numbers = images(), (torch.full((6,), float(v)) for v in box)
    got = crop(x, *numbers, mirrored=torch.tensor([False, True] * 3))
    want = reference.resized_crop(x, *box, size=[12, 12], antialias=False)
    torch.testing.assert_close(got[::2], want[::2], atol=1e-5, rtol=0)
    torch.testing.assert_close(got[1::2], want[1::2].flip(3), atol=1e-5, rtol=0)


def test_a_crop_at_full_scale_is_the_identity():
    x, zero, full = images(), torch.zeros(6), torch.full((6,), 12.0)
    got = crop(x, zero, zero, full, full, torch.zeros(6, dtype=torch.bool))
    torch.testing.assert_close(got, x, atol=1e-5, rtol=0)


@pytest.mark.parametrize("height, width", [(32, 32), (8, 8), (6, 40)])
def test_crops_lie_inside_the_image_and_keep_to_scale_and_ratio(height, width):
    draws = uniform(torch_stream(2, "b"), 5000, 22, torch.device("cpu"))
    top, left, h, w = _boxes(draws, height, width, SCALE)
    assert (
        (top >= 0).all()
        and (left >= 0).all()
        and (top + h <= height).all()
        and (left + w <= width).all()
    )
    assert torch.equal(h, h.round()) and torch.equal(top, top.round())
    area, ratio = h * w / (height * width), w / h
    if height == width == 32:
        assert area.min() > 0.17 and area.max() <= 1 and abs(area.mean() - 0.58) < 0.04
        assert ratio.min() > RATIO[0] * 0.9 and ratio.max() < RATIO[1] * 1.1


def test_crop_flip_shifts_by_integers_and_pads_with_black():
    x = pixels(64)
    shifted = crop_flip(x, torch_stream(3, "f"), flip=0.0)
    padded = torch.nn.functional.pad(x, [4] * 4)
    windows = padded.unfold(2, 12, 1).unfold(3, 12, 1)  # [B, C, 9, 9, 12, 12]
    matches = (windows == shifted[:, :, None, None]).all(-1).all(-1).all(1)  # [B, 9, 9]
    assert matches.flatten(1).any(1).all() and len(matches.nonzero()[:, 1:].unique(dim=0)) > 25
    assert torch.equal(crop_flip(x, torch_stream(3, "f"), flip=1.0), shifted.flip(3))


def test_an_affine_change_is_affine_grids():
    x, matrix = images(height=12, width=20), torch.randn(6, 2, 3, generator=torch_stream(11, "m"))
    want = grid_sample(
        x, affine_grid(matrix, list(x.shape), align_corners=False), align_corners=False
    )
    torch.testing.assert_close(warp(x, matrix), want, atol=1e-5, rtol=0)


def test_the_probability_of_a_flip_is_a_parameter():
    x, draws = images(200), uniform(torch_stream(4, "f"), 200, DRAWS, torch.device("cpu"))
    plain, flipped, half = (resized_crop(x, draws, flip=p) for p in (0.0, 1.0, 0.5))
    torch.testing.assert_close(flipped, plain.flip(3))
    mirrored = (half - flipped).abs().amax((1, 2, 3)) < 1e-6
    assert 70 < mirrored.sum() < 130


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("shape", [(1, 1, 28, 28), (5, 3, 8, 8), (2, 3, 32, 20), (3, 4, 16, 16)])
@pytest.mark.parametrize("kind", [images, pixels])
def test_every_policy_serves_every_size_of_batch_image_and_channel(policy, shape, kind):
    x, channels = kind(*shape), shape[1]
    before = x.clone()
    out = views(x, 2, policy, *stats(channels), torch_stream(5, "v"))
    assert len(out) == 2 and torch.equal(x, before)
    for view in out:
        assert view.shape == x.shape and view.dtype == torch.float32
        assert view.min() >= -2 - 1e-4 and view.max() <= 2 + 1e-4  # 0..1 normalised by 0.5 and 0.25


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("n_views", [1, 2, 3])
def test_row_i_of_each_view_is_image_i(policy, n_views):
    x = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.5]).view(5, 1, 1, 1).expand(5, 3, 8, 8).contiguous()
    for view in views(x, n_views, policy, [0.0] * 3, [1.0] * 3, torch_stream(10, "v")):
        assert (view.amax((1, 2, 3)) > 0).tolist() == [
            False,
            True,
            False,
            True,
            True,
        ]  # black stays black


@pytest.mark.parametrize("policy", ["simclr", "crop-flip"])
def test_views_differ_and_the_same_generator_state_gives_the_same_bits(policy):
    first, second = views(pixels(), 2, policy, *stats(3), torch_stream(6, "v"))
    again = views(pixels(), 2, policy, *stats(3), torch_stream(6, "v"))
    assert not torch.equal(first, second)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("policy", [simclr, crop_flip])
def test_no_example_depends_on_its_neighbours(policy, channels):
    x = images(8, channels)
    other = 1 - x
    other[2] = x[2]
    assert torch.equal(policy(x, torch_stream(7, "v"))[2], policy(other, torch_stream(7, "v"))[2])


def test_global_randomness_is_neither_used_nor_changed():
    before = torch.random.get_rng_state()
    one = simclr(images(), torch_stream(8, "v"))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(5)
    assert torch.equal(one, simclr(images(), torch_stream(8, "v")))


def test_none_is_prepare_and_an_unknown_policy_is_refused():
    same = views(pixels(), 1, "none", *stats(3), torch_stream(9, "v"))[0]
    assert torch.equal(same, prepare(pixels(), *stats(3)))
    with pytest.raises(ConfigError, match="did you mean 'simclr'"):
        views(pixels(), 2, "simcrl", *stats(3), torch_stream(9, "v"))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n_views", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_several_batches_at_once_get_what_they_get_one_after_the_other(policy, n_views, channels):
    x, sizes = pixels(60, channels), [16, 16, 3, 16, 9]
    g = torch_stream(10, "v")
    want = [views(part, n_views, policy, *stats(channels), g) for part in x.split(sizes)]
    again = torch_stream(10, "v")
    at_once = views(x, n_views, policy, *stats(channels), again, sizes)
    got = zip(*(view.split(sizes) for view in at_once), strict=True)
    for batch, parts in zip(got, want, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, parts, strict=True))
    assert torch.equal(g.get_state(), again.get_state())


def test_jitter_of_each_image_writes_to_no_scattered_images():
    """Which a GPU does by sorting them, with many launches for each write."""
    x, draws = images(40), torch.rand(40, colour.DRAWS, generator=torch_stream(0, "draws"))
    orders = [[(i + j) % 4 for j in range(4)] for i in range(40)]
    operations = []

    class Names(Launches):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            operations.append(op.overloadpacket.__name__)
            return super().__torch_dispatch__(op, types, args, kwargs)

    with Names():
        jittered = colour.jitter_each_(x.clone(), orders, draws)
    assert not {"index_put_", "index_put", "scatter_"} & set(operations)
    assert operations.count("index") == 5 + 16  # images before each turn and after all, and factors
    alone = [colour.jitter_(x[i : i + 1].clone(), orders[i], draws[i : i + 1]) for i in range(40)]
    torch.testing.assert_close(jittered, torch.cat(alone), atol=1e-6, rtol=0)
