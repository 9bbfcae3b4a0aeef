"""Codecs: values by hand, bytes, and messages that are made and read."""

import itertools
import math

import numpy as np
import pytest

from hpcfed.federation.transforms.compression.bits import (
    Reader,
    golomb,
    golomb_bits,
    pack,
    pack_positions,
    read_positions,
    unpack,
)
from hpcfed.federation.transforms.compression.codec import Codec
from hpcfed.federation.transforms.compression.eden import EDEN, centroids, quantise, slices
from hpcfed.federation.transforms.compression.float16 import Float16
from hpcfed.federation.transforms.compression.int8 import Int8
from hpcfed.federation.transforms.compression.powersgd import PowerSGD
from hpcfed.federation.transforms.compression.qsgd import QSGD
from hpcfed.federation.transforms.compression.randomk import RandomK
from hpcfed.federation.transforms.compression.sign import Sign
from hpcfed.federation.transforms.compression.stc import STC
from hpcfed.federation.transforms.compression.sz3 import SZ3
from hpcfed.federation.transforms.compression.terngrad import TernGrad
from hpcfed.federation.transforms.compression.topk import TopK
from hpcfed.federation.transforms.compression.zfp import ZFP

CODECS = {
    "top-k": lambda: TopK(0.1),
    "top-k of each tensor": lambda: TopK(0.01, together=False),
    "random-k": lambda: RandomK(0.1),
    "stc": lambda: STC(0.01),
    "qsgd": lambda: QSGD(7, bucket=100),
    "terngrad": TernGrad,
    "sign": Sign,
    "plain sign": lambda: Sign(0.01),
    "eden": lambda: EDEN(3),
    "powersgd": lambda: PowerSGD(2),
    "int8": Int8,
    "float16": Float16,
    "sz3": lambda: SZ3(0.01),
    "zfp": lambda: ZFP(0.01),
}
PACKAGES = {"sz3": "pysz", "zfp": "zfpy"}
VARIABLE = ("top-k", "top-k of each tensor", "stc", "sz3", "zfp")  # lengths depend on values
SHAPES = [(40, 50), (), (0,), (1,), (7,), (6, 5, 3, 3), (500,)]
each_codec = pytest.mark.parametrize("name", CODECS)


def make(name: str) -> Codec:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], reason="needs the extra compression")
    return CODECS[name]()


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.asarray(stream(seed).normal(0, 0.05, shape), np.float32)


def there_and_back(codec: Codec, x: np.ndarray, seed: int = 0) -> np.ndarray:
    """What is decoded of one tensor, encoded even if that is longer."""
    code = codec.pack(x, stream(seed), {})
    assert len(code) <= codec.most_bytes_of(x.shape)
    return codec.unpack(Reader(code), x.shape, stream(seed)).reshape(x.shape)


@each_codec
def test_a_message_is_read_with_the_same_stream_and_is_no_longer_than_announced(name: str):
    many = [values(shape, i) for i, shape in enumerate(SHAPES)]
    message = make(name).encode(many, stream())
    decoded = make(name).decode(message, SHAPES, stream())
    assert [x.shape for x in decoded] == SHAPES
    assert all(x.dtype == np.float32 for x in decoded)
    announced = make(name).most_bytes(SHAPES)
    assert len(message) <= announced
    assert len(message) == announced or name in VARIABLE
    large = make(name).decode(make(name).encode(many[:1], stream()), SHAPES[:1], stream())
    assert np.dot(large[0].ravel(), many[0].ravel()) > 0  # it is of these values


@each_codec
@pytest.mark.parametrize(
    "x",
    [vector(), vector(0.3), np.zeros((30, 40), np.float32), vector(1, math.nan, 2)],
    ids=("none", "one", "zeros", "nan"),
)
def test_nothing_one_value_zeros_and_nan(name: str, x: np.ndarray):
    if name == "plain sign" and np.isfinite(x).all():
        x = np.full_like(x, 0.01)  # whatever it is: one bit has no 0
    message = make(name).encode([x], stream())
    (decoded,) = make(name).decode(message, [x.shape], stream())
    np.testing.assert_allclose(decoded, x, rtol=1e-3)
    assert len(message) <= x.nbytes + 1


@each_codec
def test_small_tensors_travel_as_they_are(name: str):
    small, large = values((7, 3)), values((30, 40), 1)
    codec = make(name)
    codec.min_size = 22
    decoded = codec.decode(codec.encode([small, large], stream()), [(7, 3), (30, 40)], stream())
    assert (decoded[0] == small).all()
    assert not (decoded[1] == large).all()


@pytest.mark.parametrize("codec", [TopK(1), RandomK(1), STC(1, together=False), TopK(1, False)])
def test_the_full_rate_loses_nothing_or_only_magnitudes(codec: Codec):
    x = values((20, 30))
    (decoded,) = codec.decode(codec.encode([x], stream()), [x.shape], stream())
    if isinstance(codec, STC):
        np.testing.assert_allclose(decoded, np.abs(x).mean() * np.sign(x), rtol=1e-5)
    else:
        assert decoded.tobytes() == x.tobytes()


def test_numbers_are_packed_without_gaps():
    assert pack(np.array([5, 2, 7]), 3) == bytes([0b10101011, 0b10000000])
    assert unpack(pack(np.array([5, 2, 7]), 3), 3, 3).tolist() == [5, 2, 7]
    assert pack(np.zeros(0, int), 3) == b""


@pytest.mark.parametrize(
    ("share", "b", "bits"),
    [(0.1, 3, 4.7558), (0.01, 6, 8.1079), (0.0025, 8, 10.1136), (0.001, 9, 11.4947)],
)
def test_golomb_codes_have_the_published_lengths(share: float, b: int, bits: float):
    assert golomb_bits(share) == b
    n = 400_000
    k = int(share * n)
    positions = np.sort(stream().choice(n, k, replace=False))
    assert 8 * len(golomb(positions, n)) / k == pytest.approx(bits, rel=0.01)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (9, 4), (1000, 1), (1000, 10), (999, 998)])
def test_positions_are_read_in_any_encoding(n: int, k: int):
    positions = np.sort(stream(n).choice(n, k, replace=False))
    data = pack_positions(positions, n)
    assert read_positions(Reader(data + b"more"), k, n).tolist() == positions.tolist()


def test_a_million_values_take_the_bytes_of_the_shortest_positions():
    """Of 820,522 values 1 %: packed positions would take 53,333 bytes with the values, a bitmap
    135,386, Golomb codes 41,136; with one byte that says which.
    """
    x = stream().normal(size=820_522).astype(np.float32)
    code = TopK(8205 / 820_522).pack(x, stream(), {})
    assert len(code) == pytest.approx(41_137, abs=50)
    assert TopK(8205 / 820_522).most_bytes_of(x.shape) == 53_334


def test_top_k_keeps_the_largest_and_of_equal_ones_the_first():
    assert there_and_back(TopK(1 / 3), vector(3, -1, 0.5)).tolist() == [3, 0, 0]
    assert there_and_back(TopK(1 / 2), vector(2, -2)).tolist() == [2, 0]


def test_random_k_is_unbiased():
    x = vector(3, -1, 0.5)
    decoded = {tuple(there_and_back(RandomK(1 / 3), x, seed).tolist()) for seed in range(40)}
    assert decoded == {(9, 0, 0), (0, -3, 0), (0, 0, 1.5)}  # their mean is x
    unscaled = there_and_back(RandomK(1 / 3, scaled=False), x)
    assert np.abs(unscaled).sum() in (3, 1, 0.5)
    assert len(RandomK(1 / 3).pack(x, stream(), {})) == 4


def test_stc_sends_the_mean_magnitude():
    assert there_and_back(STC(1 / 2), vector(5, -3, 1, 0.1)).tolist() == [4, -4, 0, 0]
    assert there_and_back(STC(1 / 4), vector(5, -3, 1, 0.1)).tolist() == [5, 0, 0, 0]


def test_qsgd_rounds_up_as_often_as_it_should():
    x, codec = vector(3, -4), QSGD(levels=4)
    decoded = np.array([there_and_back(codec, x, seed) for seed in range(400)])
    assert set(decoded[:, 0]) == {2.5, 3.75}  # 2.4 of 4 levels of a norm of 5
    assert np.mean(decoded[:, 0] == 3.75) == pytest.approx(0.4, abs=0.05)
    assert set(decoded[:, 1]) == {-3.75, -5.0}  # 3.2
    np.testing.assert_allclose(there_and_back(QSGD(2**22), x), x, rtol=1e-6)


@pytest.mark.parametrize(("levels", "size"), [(4, 260), (127, 516)])
def test_qsgd_takes_a_norm_and_some_bits_a_value(levels: int, size: int):
    assert len(QSGD(levels).pack(values((512,)), stream(), {})) == size


def test_terngrad_is_unbiased():
    decoded = np.array([there_and_back(TernGrad(), vector(3, -4), seed) for seed in range(400)])
    assert set(decoded[:, 1]) == {-4}
    assert set(decoded[:, 0]) == {0, 4}
    assert np.mean(decoded[:, 0] == 4) == pytest.approx(0.75, abs=0.05)
    assert len(TernGrad().pack(values((23,)), stream(), {})) == 4 + 5


@pytest.mark.parametrize(
    ("codec", "scale"),
    [(QSGD(4, unbiased=False), 5 * 16 / 16.4), (TernGrad(unbiased=False), 4 * 25 / 28)],
)
def test_a_scale_for_feedback_makes_the_error_smallest(codec: Codec, scale: float):
    """||v||^2 over the mean square of what is decoded: 25 of 25 + .625, and 25 of 4 (3 + 4)."""
    code = codec.pack(vector(3, -4), stream(), {})
    assert np.frombuffer(code[:4], np.float32)[0] == pytest.approx(scale)


@pytest.mark.parametrize("codec", [QSGD(1, unbiased=False), TernGrad(unbiased=False)])
def test_errors_that_are_added_to_later_messages_do_not_grow(codec: Codec):
    x, error = values((2000,)), np.zeros(2000, np.float32)
    for seed in range(100):
        error = x + error - there_and_back(codec, x + error, seed)
    assert np.linalg.norm(error) < 100 * np.linalg.norm(x) / 2
    before = np.zeros(2000, np.float32)
    for seed in range(200):  # downloads of a model that does not change
        before = before + there_and_back(codec, x - before, seed)
    assert np.linalg.norm(x - before) < 0.01 * np.linalg.norm(x)


def test_signs_have_the_mean_magnitude_or_a_fixed_one():
    assert there_and_back(Sign(), vector(3, -1)).tolist() == [2, -2]
    assert there_and_back(Sign(0.5), vector(3, -1, 0)).tolist() == [0.5, -0.5, 0.5]
    assert len(Sign().pack(values((9,)), stream(), {})) == 4 + 2
    assert len(Sign(0.5).pack(values((9,)), stream(), {})) == 2


def test_eden_has_the_levels_of_the_normal_distribution():
    assert centroids(1) == pytest.approx([math.sqrt(2 / math.pi)], rel=1e-10)
    assert centroids(2) == pytest.approx([0.4527800399, 1.5104176087], rel=1e-7)
    assert centroids(3) == pytest.approx(
        [0.2450941632, 0.7560052490, 1.3439092614, 2.1519456699], rel=1e-7
    )
    assert (np.diff(centroids(8)) > 0).all()


def test_eden_without_a_rotation():
    (factor,), codes = quantise(np.array([[3.0, 1.0]]), 1)
    level = math.sqrt(2 / math.pi)
    assert factor * level == pytest.approx(2.5)  # 10 / 4
    assert codes.tolist() == [[0, 0]]
    assert quantise(np.zeros((1, 4)), 2)[0].tolist() == [0]


def test_eden_keeps_the_product_with_the_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hpcfed.federation.transforms.compression.eden.SHORTEST", 2)
    x = vector(3, 1)
    for signs in itertools.product((1.0, -1.0), repeat=2):
        monkeypatch.setattr(
            "hpcfed.federation.transforms.compression.eden.random_signs",
            lambda n, generator, signs=signs: np.array(signs),
        )
        assert x @ there_and_back(EDEN(1), x) == pytest.approx(10)


def test_errors_of_eden_with_different_rotations_cancel():
    x = values((1024,))
    mean = np.mean([there_and_back(EDEN(1), x, seed) for seed in range(50)], 0)
    assert ((mean - x) ** 2).sum() / (x**2).sum() == pytest.approx(0.570796 / 50, rel=0.15)


@pytest.mark.parametrize(("bits", "error"), [(1, 0.570796), (2, 0.133121), (3, 0.035784)])
def test_eden_has_the_published_error(bits: int, error: float):
    x = values((4096,))
    square = ((there_and_back(EDEN(bits), x) - x) ** 2).sum() / (x**2).sum()
    assert square == pytest.approx(error, rel=0.08)
    assert len(EDEN(bits).pack(x, stream(), {})) == 4 + bits * 4096 // 8


def test_the_last_values_of_eden_are_right_in_the_mean_too():
    """Also where they are few beyond a power of two: a slice of two values has but two levels."""
    for n in (65, 66, 130, 1026, 4098):
        x = values((n,))
        x[-2:] = [0.1, 0.09]
        mean = np.mean([there_and_back(EDEN(1), x, seed) for seed in range(500)], 0)
        assert mean[-2:] == pytest.approx(x[-2:], abs=0.014), n


def test_a_message_of_few_values_is_not_encoded_by_eden():
    """Their levels would be far from right in the mean, with zeros beside them too."""
    for n in (1, 2, 63):
        x = values((n,))
        (decoded,) = EDEN(1).decode(EDEN(1).encode([x], stream()), [(n,)], stream())
        assert decoded.tobytes() == x.tobytes()
    assert EDEN(1).pack(values((64,)), stream(), {}) is not None


def test_eden_pads_little_and_has_no_short_slices():
    for n in [*range(64, 700), 1023, 1026, 4096, 4097, 5000, 8191, 8193, 12_345]:
        parts = slices(n)
        ends = [start + size * rows for start, size, _, rows in parts]
        assert [start for start, *_ in parts] == [0, *ends[:-1]]
        assert ends[-1] == n
        assert all(64 <= size <= D for _, size, D, _ in parts), n
        assert sum(D * rows for _, _, D, rows in parts) <= 1.1 * n + 64, n


def test_powersgd_follows_the_subspace_from_message_to_message(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PowerSGD, "most_bytes_of", lambda self, shape: 0)  # so small a matrix
    M, memory = np.diag(vector(3, 1)), {"Q": np.ones((2, 1), np.float32)}
    errors = []
    for _ in range(3):
        code = PowerSGD(1).pack(M, stream(), memory)
        decoded = PowerSGD(1).unpack(Reader(code), (2, 2), stream())
        if not errors:
            np.testing.assert_allclose(decoded, [[2.7, 0.3], [0.9, 0.1]], rtol=1e-6)
        errors.append(np.linalg.norm(M - decoded))
        assert len(code) == 4 * 1 * (2 + 2)
    assert errors == pytest.approx([1.341641, 1.005465, 1.000068], rel=1e-5)


def test_powersgd_loses_nothing_of_a_matrix_of_low_rank():
    M = values((30, 2)) @ values((2, 40), 1)
    np.testing.assert_allclose(there_and_back(PowerSGD(3), M), M, atol=1e-6)


def test_casts():
    x = vector(0.1, -0.25, 0.3)
    np.testing.assert_allclose(there_and_back(Int8(), x), [0.0992126, -0.2503937, 0.3], rtol=1e-6)
    code = Int8().pack(x, stream(), {})
    assert np.frombuffer(code[4:], np.int8).tolist() == [42, -106, 127]
    assert there_and_back(Float16(), vector(0.1, 65520)).tolist() == [0.0999755859375, 65504]


@pytest.mark.parametrize("name", ["sz3", "zfp"])
@pytest.mark.parametrize("shape", [(1000,), (30, 40), (4, 3, 5, 5), (2, 2, 3, 4, 50)])
def test_errors_are_bounded(name: str, shape: tuple[int, ...]):
    x, codec = values(shape), make(name)
    (decoded,) = codec.decode(codec.encode([x], stream()), [shape], stream())
    error = np.abs(decoded - x).max()
    assert 0 < error <= 0.01 * (x.max() - x.min())
    lossless = type(codec)(0)
    (decoded,) = lossless.decode(lossless.encode([x], stream()), [shape], stream())
    assert decoded.tobytes() == x.tobytes()
    constant = np.full((500,), 0.1, np.float32)
    (decoded,) = codec.decode(codec.encode([constant], stream()), [(500,)], stream())
    assert (decoded == constant).all()


def test_a_message_that_ends_too_early_is_an_error():
    message = Int8().encode([values((30,))], stream())
    with pytest.raises(ValueError, match="ends 3 bytes too early"):
        Int8().decode(message[:-3], [(30,)], stream())
