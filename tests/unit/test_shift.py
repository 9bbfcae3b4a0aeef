"""Feature skew: rotation, colour and noise by client."""

import numpy as np
import pytest

from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.config.sections import Shift
from hpcfed.config.write import to_toml
from hpcfed.core.errors import ConfigError
from hpcfed.data.shift import Change, of_client
from hpcfed.engine.decide import world
from hpcfed.engine.setup import federation
from hpcfed.engine.world import World
from hpcfed.results.trained.sources import CPU, Sources
from hpcfed.storage import names
from tests.contract import toy
from tests.threads import spmd

pytestmark = pytest.mark.quick
MLP = ("--models.mix", "mlp")
ROWS = np.array([4, 0, 2])
SQUARE = np.arange(6 * 3 * 4 * 4, dtype=np.uint8).reshape(6, 3, 4, 4) // 2


def clients_of(*flags: str):
    """The clients of a toy federation with these flags."""
    job = toy.job("fedavg", *MLP, *flags)
    fed = federation(job, Serial(), world(job, Serial()))
    return [fed.clients[k] for k in range(fed.K)]


def images(shard) -> np.ndarray:
    return shard.batch(np.arange(len(shard)))[0].numpy()


def test_the_table_in_a_table_is_read_from_files_flags_and_the_environment(tmp_path):
    (tmp_path / "job.toml").write_text("[data.shift]\nnoise = 0.1\nhue_groups = 3\n")
    flags = ("--data.shift.hue_groups", "2")
    environ = {"HPCFED_DATA__SHIFT__DEGREES": "0,15", "HPCFED_DATA__SHIFT__NOISE": "0.2"}
    job = load([str(tmp_path / "job.toml"), *flags], environ=environ)
    assert job.data.shift == Shift(noise=0.2, hue_groups=2, degrees=(0, 15))
    stored = tmp_path / "stored.toml"
    stored.write_text(to_toml(job.plain()))
    assert load([str(stored)], environ={}).data.shift == job.data.shift


def test_four_quarter_turns_are_the_identity_bit_for_bit():
    x, once = SQUARE[ROWS], Change(turns=1)
    turned = x
    for _ in range(4):
        turned = once(turned, np.arange(len(turned)), 0, "train")
    assert (turned == x).all() and (once(x, np.arange(3), 0, "train") != x).any()


def test_groups_are_turned_by_equal_parts_of_the_circle():
    two, four = Shift(rotation_groups=2), Shift(rotation_groups=4)
    assert [of_client(two, k, 5).turns for k in range(5)] == [0, 2, 0, 2, 0]
    assert [of_client(four, k, 5).turns for k in range(5)] == [0, 1, 2, 3, 0]
    corner = np.zeros((1, 1, 2, 2), np.uint8)
    corner[0, 0, 0, 1] = 9  # right above; a quarter turn counter-clockwise later left above
    assert Change(turns=1)(corner, np.array([0]), 0, "test").tolist() == [[[[9, 0], [0, 0]]]]


def test_a_rotation_by_90_degrees_is_a_quarter_turn_in_images_of_any_type():
    for x in (SQUARE, SQUARE.astype(np.float32) / 255):
        by_degrees = Change(degrees=90)(x, ROWS, 0, "train")
        quarter = Change(turns=1)(x, ROWS, 0, "train")
        assert by_degrees.dtype == x.dtype
        assert np.allclose(by_degrees, quarter, atol=1e-6)
    wide = SQUARE.reshape(6, 3, 2, 8)
    assert (Change(degrees=180)(wide, ROWS, 0, "train") == wide[ROWS, :, ::-1, ::-1]).all()


def test_a_rotation_by_45_degrees_leaves_the_corners_black():
    white = np.full((1, 1, 9, 9), 255, np.uint8)
    turned = Change(degrees=45)(white, np.array([0]), 0, "train")[0, 0]
    assert turned[0, 0] == turned[-1, -1] == 0 and turned[4, 4] == turned[0, 4] == 255


def test_a_third_of_the_colour_circle_makes_red_green():
    red = np.zeros((1, 3, 1, 1), np.uint8)
    red[0, 0] = 200
    three = [of_client(Shift(hue_groups=3), k, 3) for k in range(3)]
    colours = [one(red, np.array([0]), 0, "train").ravel().tolist() for one in three]
    assert colours == [[200, 0, 0], [0, 200, 0], [0, 0, 200]]
    half = of_client(Shift(hue_groups=2), 1, 2)(red, np.array([0]), 0, "train")
    assert half.ravel().tolist() == [0, 200, 200]


def test_sigma_is_a_standard_deviation_or_a_variance():
    std = [of_client(Shift(noise=0.3), k, 4).noise for k in range(4)]
    assert std == pytest.approx([0, 0.1, 0.2, 0.3])  # sigma k / (K - 1)
    variance = [of_client(Shift(noise=0.04, noise_of="variance"), k, 4).noise for k in range(4)]
    assert variance == pytest.approx([0.1, 0.02**0.5, 0.03**0.5, 0.2])  # sqrt(sigma (k + 1) / K)
    assert of_client(Shift(noise=0.3), 0, 1).noise == 0


def test_noise_belongs_to_the_seed_and_the_image():
    grey = np.full((50, 1, 20, 20), 102, np.uint8)
    weak, strong = (Change(noise=sigma, noisy=True) for sigma in (0.1, 0.5))
    every = weak(grey, np.arange(50), 7, "train") - 0.4
    assert every.mean() == pytest.approx(0, abs=0.003) and every.std() == pytest.approx(0.1, 0.02)
    assert (weak(grey, ROWS, 7, "train") - 0.4 == every[ROWS]).all()  # whoever asks for it
    assert np.allclose(strong(grey, ROWS, 7, "train") - 0.4, 5 * every[ROWS], atol=1e-5)
    for seed, part in ((8, "train"), (7, "test")):
        assert not np.allclose(weak(grey, ROWS, seed, part) - 0.4, every[ROWS], atol=0.01)
    still = Change(noisy=True)(grey, ROWS, 7, "train")
    assert still.dtype == np.float32 and (still == np.float32(102) / np.float32(255)).all()


@pytest.mark.parametrize(
    "flags",
    [
        ("--data.shift.rotation_groups", "4"),
        ("--data.shift.noise", "0.2"),
        ("--data.shift.degrees", "0,30,60"),
    ],
    ids=["groups", "noise", "degrees"],
)
def test_labels_and_partition_stay_and_tests_change_as_training_images_do(flags):
    shift = toy.job("fedavg", *MLP, *flags).data.shift
    for k, (before, after) in enumerate(zip(clients_of(), clients_of(*flags), strict=True)):
        change = of_client(shift, k, 6)
        for part in ("train", "test"):
            one, other = getattr(before, part), getattr(after, part)
            assert (one.labels == other.labels).all()
            wanted = change(one.x, one.rows, 0, part)
            assert (images(other) == wanted).all() and images(other).dtype == wanted.dtype


def test_one_group_and_no_noise_leave_the_run_as_it_is():
    neutral = (*("--data.shift.degrees", "0"), *("--data.shift.noise", "0"))
    plain, same = (toy.run(Serial(), toy.job("fedavg", *MLP, *f)) for f in ((), neutral))
    assert toy.differences(plain, same) == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_do_not_matter_to_shifted_images(ranks: int):
    flags = (*("--data.shift.noise", "0.2"), *("--data.shift.rotation_groups", "2"))
    job = toy.job("fedavg", *MLP, *flags, "--evaluate.common", "--evaluate.validation", "0.2")
    alone = toy.run(Serial(), job)
    for outcome in spmd(ranks, lambda comm: toy.run(comm, job)):
        assert toy.differences(outcome, alone) == []


def test_the_common_test_split_has_the_tests_of_all_clients_as_they_have_them():
    job = toy.job("fedavg", *MLP, "--data.shift.rotation_groups", "4")
    decided = world(job, Serial())
    parts = [decided.common_test(rank, 3, 4, CPU) for rank in range(3)]
    order = np.argsort(np.concatenate([part.ids for part in parts]))
    together = np.concatenate([images(part) for part in parts])[order]
    tests = [decided.client_data(k, CPU)[1] for k in range(6)]
    assert (together == np.concatenate([images(test) for test in tests])).all()
    labels = np.concatenate([part.labels for part in parts])[order]
    assert (labels == np.concatenate([test.labels for test in tests])).all()


def test_the_common_test_split_is_made_only_if_it_is_scored(monkeypatch: pytest.MonkeyPatch):
    builds = []
    make = World.common_test
    monkeypatch.setattr(World, "common_test", lambda *parts: builds.append(1) or make(*parts))
    job = toy.job("fedavg", *MLP, "--data.shift.rotation_groups", "4", "--rounds", "2")
    toy.run(Serial(), job)
    assert not builds
    toy.run(Serial(), toy.job("fedavg", *MLP, "--evaluate.common", "--rounds", "2"))
    assert builds == [1]


def test_each_group_has_every_image_once_if_images_are_reused():
    groups = ("--data.shift.rotation_groups", "2", "--data.shift.reuse")
    job = toy.job("fedavg", *MLP, *groups, "--clients", "6", "--data.partition", "iid")
    decided = world(job, Serial())
    n = len(decided.data.train.y) // 2
    for group in range(2):
        rows = np.concatenate(decided.rows.train[group::2])
        assert sorted(rows.tolist()) == list(range(group * n, (group + 1) * n))
    upright, turned = (decided.client_data(k, CPU)[0] for k in (0, 1))
    originals = decided.data.train.x
    assert (images(upright) == originals[decided.rows.train[0]]).all()
    assert (images(turned) == originals[decided.rows.train[1] - n, :, ::-1, ::-1]).all()


@pytest.mark.parametrize(
    "flags",
    [
        ("--data.shift.rotation_groups", "2", "--data.shift.reuse"),
        ("--data.shift.degrees", "0,30,60", "--evaluate.unseen", "30"),
    ],
    ids=["reused", "unseen angle"],
)
def test_readers_of_a_run_see_the_images_as_its_clients_had_them(tmp_path, flags):
    flags = (*flags, *("--data.shift.noise", "0.2"), *("--clients", "6", "--data.partition", "iid"))
    job = toy.job("fedavg", *MLP, *flags, "--out", str(tmp_path), "--overwrite")
    decided = world(job, Serial())
    decided.partition.save(names.partition_file(tmp_path))
    sources = Sources(job, tmp_path)
    for k in range(6):
        for part, shard in zip(("train", "test"), decided.client_data(k, CPU), strict=False):
            again = sources.client_data(k, part)
            assert (images(again) == images(shard)).all() and (again.labels == shard.labels).all()
    common = decided.common_test(0, 1, 4, CPU)
    assert (sources.test.x == images(common)).all() and (sources.test.y == common.labels).all()


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--data.shift.hue_groups", "3"), "needs images of 3 channels, but those"),
        (("--data.shift.rotation_groups", "3"), "turned by quarters of a circle"),
        (("--data.shift.degrees", "400"), "less than or equal to 360"),
        (("--data.shift.reuse",), "has no effect"),
        (("--data.shift.noise_of", "variance"), "has no effect"),
        (("--data.name", "health-records", "--data.shift.noise", "1"), "has several modalities"),
    ],
)
def test_a_shift_that_is_impossible_is_refused(flags, message):
    with pytest.raises(ConfigError, match=message):
        world(toy.job("fedavg", *MLP, "--clients", "6", *flags), Serial())
