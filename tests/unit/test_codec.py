"""Bytes and back: values keep type, shape and bits; damage and strangers are refused."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcfed.comm import codec
from hpcfed.comm.codec import DTYPES, TENSORS, decode, encode
from tests.rows import for_each

pytestmark = pytest.mark.quick

keys = st.one_of(st.text(max_size=5), st.integers())
trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner)
    ),
    max_leaves=8,
)


def back(item):
    return decode(encode(item))


@settings(max_examples=50, deadline=None, derandomize=True)
@given(trees)
def test_plain_values_come_back_equal_and_of_the_same_type(item):
    assert repr(back(item)) == repr(item)


def test_nan_infinity_and_minus_zero_come_back():
    nan, high, low, zero = back([math.nan, math.inf, -math.inf, -0.0])
    assert math.isnan(nan) and (high, low) == (math.inf, -math.inf) and math.copysign(1, zero) == -1


def test_keys_keep_their_type_and_their_order():
    assert list(back({2: "a", "1": "b", 1: "c"}).items()) == [(2, "a"), ("1", "b"), (1, "c")]


@for_each(list(product(DTYPES, [(), (0,), (3,), (2, 0, 3), (2, 3)])))
def test_arrays_come_back_with_dtype_shape_and_bits(row):
    dtype, shape = row
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    got = back(array)
    assert type(got) is np.ndarray and got.dtype == array.dtype and got.shape == shape
    assert got.tobytes() == array.tobytes() and got.flags.writeable and got.flags.aligned


def test_order_and_endianness_do_not_matter():
    array = np.arange(6.0).reshape(2, 3)
    assert back(array.T).tolist() == array.T.tolist()
    assert back(array.astype(">f4")).tolist() == array.tolist()
    assert back(array[:, ::2]).tolist() == array[:, ::2].tolist()


@pytest.mark.parametrize(
    "scalar", [np.float64(0.1), np.float32(0.1), np.int64(-3), np.bool_(1), np.uint8(7)]
)
def test_numpy_scalars_stay_numpy_scalars(scalar):
    assert back(scalar) == scalar and type(back(scalar)) is type(scalar)


@for_each(list(product(TENSORS, [(), (0, 2), (2, 3)])))
def test_tensors_come_back_with_dtype_shape_and_values(row):
    name, shape = row
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(getattr(torch, name))
    got = back(tensor)
    assert isinstance(got, torch.Tensor) and got.dtype == tensor.dtype and torch.equal(got, tensor)


def test_tensors_come_back_without_gradient_and_contiguous():
    tensor = torch.arange(6.0, requires_grad=True).reshape(2, 3).T
    got = back({"w": tensor})["w"]
    assert not got.requires_grad and got.is_contiguous() and got.tolist() == tensor.tolist()


def test_nested_arrays_come_back_in_their_places():
    got = back({3: (np.ones(2), [torch.zeros(1)]), "x": {"y": np.array(5)}})
    assert got[3][0].tolist() == [1, 1] and got[3][1][0].tolist() == [0] and got["x"]["y"] == 5


@pytest.mark.parametrize(
    "item",
    [
        {1, 2},
        b"raw",
        1j,
        object(),
        np.array(["text"]),
        np.array([1j]),
        np.array([object()]),
        {1.5: 0},
        {True: 0},
        torch.zeros(1, dtype=torch.complex64),
        type("Sub", (dict,), {})(),
    ],
)
def test_strangers_are_refused_by_name(item):
    with pytest.raises(TypeError, match="codec: "):
        encode([item])


def test_the_refusal_names_the_type():
    with pytest.raises(TypeError, match=r"builtins\.set"):
        encode({"a": {1, 2}})


def test_a_registered_class_comes_back_as_itself(monkeypatch):
    class Params(dict):
        pass

    monkeypatch.setattr(codec, "_KINDS", {})
    codec.register(Params, "test-params", dict, Params)
    got = back({0: Params(w=torch.ones(2))})[0]
    assert type(got) is Params and got["w"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="'test-params' is taken"):
        codec.register(str, "test-params", str, str)
    data = encode(Params())
    codec._KINDS.clear()
    with pytest.raises(ValueError, match="nothing is registered as 'test-params'"):
        decode(data)


def test_every_cut_and_every_extra_byte_is_found():
    data = encode({"x": np.arange(3), "y": [1.5, "text"], 4: torch.ones(2)})
    for length in range(len(data)):
        with pytest.raises(ValueError, match="damaged data"):
            decode(data[:length])
    with pytest.raises(ValueError, match="1 bytes too many"):
        decode(data + b"\0")


def test_damaged_bytes_raise_value_error_and_nothing_else():
    data = encode(
        {"x": np.arange(3), "y": (1.5, "text", None), 4: torch.ones(2), "z": np.float32(1)}
    )
    refused = 0
    for i in range(len(data)):
        for value in (0, 0x5B, 0x7B, 0x39, 0xFF):
            try:
                decode(data[:i] + bytes([value]) + data[i + 1 :])
            except ValueError:
                refused += 1
    assert refused > len(data)
