"""Sums on a GPU have the bits of sums on the host. The GPU's way is forced on the CPU's tensors."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hpcfed.clients.client import Shard
from hpcfed.comm import Serial, exact, sum_messages
from hpcfed.core import payload
from hpcfed.core.averaging import Row, mean_of
from hpcfed.core.errors import DivergedError
from hpcfed.core.params import Mean, Params
from hpcfed.core.payload import magnitudes, not_finite
from hpcfed.federation import device_rows, exchange
from hpcfed.federation.device_rows import DeviceLines, DeviceRows
from tests.contract import toy
from tests.contract.conftest import small_model  # noqa: F401, has its effect by being here
from tests.on_device import CPU, Launches, Waits, mean_on_both
from tests.threads import spmd

TYPES = {  # bytes of a value
    torch.float16: 2,
    torch.bfloat16: 2,
    torch.float32: 4,
    torch.float64: 8,
    torch.uint8: 1,
    torch.int8: 1,
    torch.int32: 4,
    torch.int64: 8,
}
TINY = 5e-324
FACTORS = [1.0, 0.0, -0.0, -3.0, 1 / 3, 1e-20, -1e20, 1e-300, 1e300, TINY]
VALUES = [0.0, -0.0, TINY, -TINY, 1e-40, -1e-45, 2.2e-308, -3e-310, 1e-30, 0.1, -7.0, 3e38, 1e300]
WIDTH = 3  # values of an array

factors = st.one_of(st.sampled_from(FACTORS), st.floats(-1e3, 1e3))


class Given(Row):
    """Arrays as they are, without a part."""

    def __init__(self, tensors: list[Tensor]):
        self.tensors, self.value = tensors, Params(a=tensors[0])

    def __len__(self) -> int:
        return len(self.tensors)

    def __getitem__(self, i: int) -> np.ndarray:
        tensor = self.tensors[i]
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    def tensor(self, i: int, device: torch.device) -> Tensor:
        return self.tensors[i]


@st.composite
def tensors(draw) -> Tensor:
    """Any bits of any type: subnormal, of any magnitude, perhaps not finite."""
    dtype = draw(st.sampled_from(list(TYPES)))
    if dtype.is_floating_point and draw(st.booleans()):
        values = st.one_of(st.sampled_from(VALUES), st.floats(-1e4, 1e4))
        return torch.tensor(draw(st.lists(values, min_size=WIDTH, max_size=WIDTH))).to(dtype)
    size = WIDTH * TYPES[dtype]
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    return torch.frombuffer(raw, dtype=dtype)


def outcome(rows, shapes: list[tuple[int, ...]], factors: list[float]) -> list:
    """The bytes of a sum, or what it raises."""
    try:
        return [total.tobytes() for total in Serial().sum(rows, shapes, factors)]
    except (DivergedError, ValueError) as error:
        return [type(error), str(error)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(tensors(), tensors(), factors), min_size=1, max_size=5))
@example([(torch.tensor([TINY, -TINY, -0.0]).double(), torch.zeros(WIDTH), 1.0)] * 3)
@example([(torch.tensor([1e300, 1.0, -1e300]).double(), torch.ones(WIDTH).half(), 1e-300)])
def test_a_sum_on_a_device_has_the_bits_and_the_errors_of_one_on_the_host(rows):
    given_rows = [Given([one, other]) for one, other, _ in rows]
    weights, shapes = [factor for *_, factor in rows], [(WIDTH,), (WIDTH,)]
    host = outcome(given_rows, shapes, weights)
    assert outcome(DeviceRows(given_rows, CPU), shapes, weights) == host


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.lists(st.floats(-1e300, 1e300), min_size=9, max_size=9), factors)))
def test_sums_have_the_same_bits_in_messages_of_several_lines(rows):
    """One rank of three puts its rows on the grid on its device, the others on the host."""

    def run(comm, on_device: bool):
        mine = [Given([torch.tensor(values, dtype=torch.float64)]) for values, _ in rows]
        mine, weights = mine[comm.rank :: 3], [f for _, f in rows][comm.rank :: 3]
        place = on_device and comm.rank == 1
        return comm.sum(DeviceRows(mine, CPU) if place else mine, [(9,)], weights)[0].tobytes()

    if any(not np.isfinite(v * f) for values, f in rows for v in values):
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SMALL", 2), ("MESSAGE", 6), ("PART", 2), ("CACHE", 1)):
            patch.setattr(sum_messages, name, value)
        try:
            host = spmd(3, lambda comm: run(comm, False))
        except DivergedError:  # the total is beyond float64
            return
        assert spmd(3, lambda comm: run(comm, True)) == host


def test_rows_of_other_shapes_are_refused_on_a_device_too():
    rows = DeviceRows([Given([torch.zeros(3)])], CPU)
    with pytest.raises(ValueError, match=r"row 0, array 0 has shape \(3,\) instead of \(2,\)"):
        rows.largest([(2,)], [1.0])
    with pytest.raises(ValueError, match="row 0 has 1 arrays instead of 2"):
        rows.largest([(3,), (3,)], [1.0])


@pytest.mark.parametrize("per", ["tensor", "row", "value"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_pieces_with_weights_of_their_own_have_the_same_mean(per: str, dtype: torch.dtype):
    g = torch.Generator().manual_seed(0)
    keep = Params(a=torch.randn(4, 5, generator=g).to(dtype), b=torch.zeros(3))
    shape = {"tensor": (), "row": (2, 1), "value": (2, 3)}[per]
    parts = []
    for k in range(5):
        at = {"a": (torch.tensor([3, k % 3]), np.array([4, 0, k % 3 + 1]))}
        value = Params(a=torch.randn(2, 3, generator=g).to(dtype))
        weight = Params(a=torch.rand(shape, generator=g)) if k % 2 else 1 / (k + 3)
        parts += Mean.of(value, weight, at).terms
    mean_on_both(parts, keep, per)  # compares


def test_a_transposed_upload_is_read_in_its_logical_order():
    value = Params(a=torch.arange(12.0).reshape(3, 4).t())
    assert torch.equal(mean_on_both(Mean.of(value).terms, value * 0, "mean")["a"], value["a"])


def test_positions_beyond_the_shape_are_refused_before_a_gpu_sees_them():
    part = Mean.of(Params(a=torch.ones(1)), 1.0, at={"a": ([3],)}).terms
    keep = Params(a=torch.zeros(3))
    with pytest.raises(IndexError, match=r"positions 3..3 of a dimension of 3 entries"):
        mean_of(part, keep, "value", Serial().sum, lambda rows: DeviceRows(rows, CPU))


def test_only_values_that_are_all_on_one_gpu_are_summed_there(monkeypatch: pytest.MonkeyPatch):
    def placed(*devices: str):
        parts = [Mean.of(Params(a=torch.zeros(2, device=d))).terms[0] for d in devices]
        return device_rows.place([Row(part, Params(a=torch.zeros(2)), "mean") for part in parts])

    assert isinstance(placed("cpu", "cpu"), list) and isinstance(placed(), list)
    monkeypatch.setattr(device_rows, "DEVICES", {"meta"})
    assert isinstance(placed("meta", "cpu"), list)
    assert placed("meta", "meta").device == torch.device("meta")


@pytest.mark.parametrize("method", ["fedavg", "fedclassavg", "heterofl"])
def test_a_run_has_the_same_bits_with_sums_on_devices(method: str, monkeypatch: pytest.MonkeyPatch):
    job = toy.job(method, "--rounds", "2")
    want = toy.run(Serial(), job)
    sums = []
    place = device_rows.place
    monkeypatch.setattr(device_rows, "DEVICES", {"cpu"})
    monkeypatch.setattr(
        exchange.device_rows, "place", lambda rows: sums.append(place(rows)) or sums[-1]
    )
    for got in spmd(2, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []
    assert len(sums) >= 4 and all(isinstance(rows, DeviceRows) for rows in sums if len(rows))


@pytest.mark.parametrize("method", ["fedclassavg", "zeroshot", "fedgkt"])
def test_a_run_has_the_same_bits_with_batches_gathered_on_devices(
    method: str, monkeypatch: pytest.MonkeyPatch
):
    """Two views per batch; examples beside the client's own; targets instead of labels."""
    job = toy.job(method, "--rounds", "2")
    want = toy.run(Serial(), job)
    monkeypatch.setattr(Shard, "gathers_on_device", True)
    assert toy.differences(toy.run(Serial(), job), want) == []


def test_a_rank_waits_once_for_all_magnitudes_and_once_for_each_message(
    monkeypatch: pytest.MonkeyPatch,
):
    """However many clients and tensors it has. The CPU is taken for a GPU."""
    monkeypatch.setattr(payload, "AT_HAND", set())
    monkeypatch.setattr(sum_messages, "SMALL", 4)
    copied = []
    complete = DeviceLines.complete
    monkeypatch.setattr(
        DeviceLines, "complete", lambda lines, n: copied.append(n) or complete(lines, n)
    )
    keep = Params({name: torch.ones(5) for name in "abcdef"})
    rows = [Row(part, keep, "mean") for k in range(7) for part in Mean.of(keep, k + 1.0).terms]
    with Waits() as waits:
        totals = Serial().sum(
            DeviceRows(rows, CPU), [(), *[(5,)] * 6], [row.factor for row in rows]
        )
    assert totals[1].tolist() == [28.0] * 5
    assert waits.count == 1 and copied == [1]


def test_a_value_is_examined_for_nan_with_one_wait_and_the_first_bad_tensor_is_named(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(payload, "AT_HAND", set())
    value = {name: torch.ones(3) for name in "abcd"} | {"n": torch.tensor(3), "e": torch.zeros(0)}
    value |= {"half": torch.ones(2).bfloat16(), "flag": torch.tensor([True])}
    with Waits() as waits:
        assert not_finite([value, Mean.of(Params(a=torch.ones(2)))]) is None
    assert waits.count == 1
    value |= {"c": torch.tensor([1.0, float("nan")]), "half": torch.tensor([float("inf")]).half()}
    assert not_finite(value) == "c"
    assert not_finite({"array": np.array([0.0, -np.inf])}) == "array"


@pytest.mark.parametrize("at_hand", [{"cpu"}, set()])
def test_magnitudes_keep_the_order_of_tensors_of_different_types(
    at_hand: set[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(payload, "AT_HAND", at_hand)
    values = [torch.tensor([3, -4]), torch.tensor([0.5]), torch.zeros(0), torch.tensor([7, 7])]
    assert magnitudes(iter(values)) == [4, 0.5, 0, 7]
    assert np.isnan(magnitudes([torch.tensor([1.0, float("nan")])])).all()
    assert magnitudes([torch.tensor([1.0, -float("inf")])]) == [float("inf")]
    assert magnitudes([]) == []


def test_tensors_on_a_gpu_are_examined_by_a_constant_number_of_launches(monkeypatch):
    monkeypatch.setattr(payload, "AT_HAND", set())

    def launches(tensors: int) -> int:
        values = [torch.rand(10) for _ in range(tensors)]
        with Launches() as counted:
            magnitudes(values)
        return counted.count

    assert launches(2) == launches(40) < 10


def test_tensors_that_are_not_examined_at_once_have_the_same_magnitudes(monkeypatch):
    monkeypatch.setattr(payload, "AT_HAND", set())
    monkeypatch.setattr(payload, "AT_ONCE", 100)
    values = [torch.full((10,), float(-i)) for i in range(7)] + [torch.full((50,), 7.0)]
    assert magnitudes(iter(values)) == [0, 1, 2, 3, 4, 5, 6, 7]


def launches(rows: int) -> int:
    out, buffer = (torch.zeros(10, dtype=torch.float64) for _ in range(2))
    values, factors = [torch.rand(10) for _ in range(rows)], [1.0 + j for j in range(rows)]
    with Launches() as counted:
        device_rows.quantise(out, values, factors, 8, buffer)
    return counted.count


def test_rows_are_added_up_with_a_constant_number_of_launches():
    assert launches(2) == launches(40) < 10


def test_rows_that_do_not_fit_at_once_and_rows_of_several_types_have_the_same_sum(monkeypatch):
    g = torch.Generator().manual_seed(0)
    types = [torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float32]
    values = [torch.rand(10, generator=g).to(dtype) for dtype in types]
    factors = [1.0, 1 / 3, 1e-20, 250.0, -0.0]
    want, out, buffer = (np.zeros(10), torch.zeros(10, dtype=torch.float64), np.zeros(10))
    exact.quantise(want, [v.double().numpy() for v in values], factors, 30, buffer)
    for limit in (1, 160, 2**26):
        monkeypatch.setattr(device_rows, "STACK", limit)
        device_rows.quantise(out, values, factors, 30, torch.zeros(10, dtype=torch.float64))
        assert np.array_equal(out.numpy(), want)
