"""Secure sums: primitives against published values, sums without masks left, recovery, bytes."""

from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("cryptography")

from hpcfed.core import rng
from hpcfed.federation.transforms.secure import field, keys, shamir
from hpcfed.federation.transforms.secure.attendance import (
    ANSWERS,
    INPUTS,
    KEYS,
    SHARES,
    Attendance,
)
from hpcfed.federation.transforms.secure.coded import CodedSum
from hpcfed.federation.transforms.secure.costs import Sizes, coded_cost, pairwise_cost
from hpcfed.federation.transforms.secure.graph import Complete, Harary, default_degree
from hpcfed.federation.transforms.secure.keys import (
    add_streams,
    agree,
    public_key,
    seal,
    unseal,
)
from hpcfed.federation.transforms.secure.pairwise import PairwiseSum

pytestmark = pytest.mark.quick

N, T, WORDS = 5, 3, 37


def draw(k: int):
    return rng.stream(0, "secure", k).bytes


def inputs(n: int = N, words: int = WORDS) -> np.ndarray:
    return rng.stream(0, "values").integers(-(2**50), 2**50, (n, words))


def pairwise_sum(attendance: Attendance, graph=None, t: int = T) -> PairwiseSum:
    graph = graph or Complete(attendance.keys)
    return PairwiseSum(attendance, WORDS, graph, t, attendance.keys, draw, dict)


def coded_sum(attendance: Attendance) -> CodedSum:
    return CodedSum(attendance, WORDS, T, 1, attendance.keys, draw, dict)


def stream_words(key: bytes, n: int) -> np.ndarray:
    words = np.zeros(n, np.uint64)
    add_streams(words, [(key, 1)])
    return words


def total(execution: PairwiseSum | CodedSum, values: np.ndarray) -> np.ndarray:
    execution.prepare()
    result = execution.empty()
    for k in execution.attendance.inputs:
        execution.add(result, execution.masked(k, values[k].copy().view(np.uint64)))
    return execution.integers(execution.unmask(result))


def all_at(stage: int, dropped: tuple[int, ...], n: int = N) -> Attendance:
    """Clients of which some drop out before a stage."""
    everybody = list(range(n))
    rest = [k for k in everybody if k not in dropped]
    return Attendance(*(everybody if i < stage else rest for i in range(4)))


def test_primitives_have_published_values():
    assert stream_words(bytes(32), 2).tobytes().hex() == "dc95c078a2408989ad48a21492842087"
    a, b = bytes([1]) * 32, bytes([2]) * 32
    key = agree(a, public_key(b), "hpcfed")
    assert key == agree(b, public_key(a), "hpcfed")
    assert (key.hex()[:8], key.hex()[-6:]) == ("249dbbf1", "cf9b55")


def test_streams_are_added_in_chunks_and_cancel():
    words = 3 * (1 << 15) + 5
    values = np.arange(words, dtype=np.uint64)
    add_streams(values, [(bytes([1]) * 32, 1), (bytes([2]) * 32, 1)])
    assert (values != np.arange(words)).all()
    np.testing.assert_array_equal(
        values - stream_words(bytes([1]) * 32, words),
        stream_words(bytes([2]) * 32, words) + np.arange(words, dtype=np.uint64),
    )
    add_streams(values, [(bytes([1]) * 32, -1), (bytes([2]) * 32, -1)])
    np.testing.assert_array_equal(values, np.arange(words))


def test_shares_of_a_small_field():
    values = [shamir.evaluate([5, 3], x, 17) for x in (1, 2, 3)]
    assert values == [8, 11, 14]
    assert shamir.lagrange((1, 3), 17) == [10, 8]
    assert shamir.constant_term((1, 3), [8, 14], 17) == 5


def test_any_t_shares_give_the_secret_and_a_wrong_one_is_noticed():
    secret = bytes(range(32))
    points = [2, 5, 9, 11, 40]
    shares = dict(zip(points, shamir.split(secret, points, 3, draw(0)), strict=True))
    for chosen in combinations(points, 3):
        assert shamir.join({x: shares[x] for x in chosen}, 3) == secret
    with pytest.raises(ValueError, match="2 shares"):
        shamir.join({x: shares[x] for x in points[:2]}, 3)
    wrong = bytes([shares[2][0], shares[2][1] ^ 1]) + shares[2][2:]
    with pytest.raises(ValueError, match="a share is wrong"):
        shamir.join({**shares, 2: wrong}, 3)


def test_a_changed_message_is_noticed():
    sealed = seal(bytes(32), 7, b"shares")
    assert unseal(bytes(32), 7, sealed) == b"shares"
    with pytest.raises(ValueError, match="client 7"):
        unseal(bytes(32), 7, bytes([sealed[0] ^ 1]) + sealed[1:])
    with pytest.raises(ValueError, match="client 8"):
        unseal(bytes(32), 8, sealed)


def test_the_modulus_is_a_product_of_primes_just_below_a_power_of_two():
    for p in field.PRIMES:
        assert all(p % divisor for divisor in range(2, 609))
    assert field.MODULUS == 2**55 - 4705


@pytest.mark.parametrize("ranks", [1, 5, 2000])
def test_integers_are_recovered_from_the_residues_of_all_ranks(ranks):
    values = np.array([0, 1, -1, 2**53, -(2**53), 123456789012345])
    masked = field.mask(values.copy(), bytes(32))
    assert (masked < field.MODULUS).all()
    shifted = (values + 2**53).astype(np.uint64)
    np.testing.assert_array_equal(masked, (field.draw(bytes(32), 6) + shifted) % field.M)
    field.subtract(masked, field.draw(bytes(32), 6))
    others = np.full(6, field.MODULUS - 1, np.uint64)  # ranks whose parts are -1
    sums = field.halves(masked) + np.uint64(ranks) * field.halves(others)
    np.testing.assert_array_equal(field.integers(field.join(sums), 1), values - ranks)
    many = 1000 * field.LIMIT % field.MODULUS
    residues = (np.array([2**53, 0], np.uint64) + np.uint64(many)) % field.M
    assert field.integers(residues, 1000).tolist() == [2**53, 0]


def test_a_random_word_beyond_the_modulus_is_replaced_by_the_next_ones(monkeypatch):
    monkeypatch.setattr(field, "CHUNK", 4)
    monkeypatch.setattr(keys, "CHUNK", 4)
    words = [[7, 2**55 - 1, 2**55, 9], [2**64 - 1, 2, 3, 4], [2**60 + 5, 6, 7, 8], [1, 2, 3, 4]]
    chunks = (np.array(chunk, np.uint64) for chunk in words)
    monkeypatch.setattr(field, "full_chunks", lambda key: chunks)
    assert field.draw(bytes(32), 6).tolist() == [7, 5, 0, 9, 1, 2]


def test_products_and_inverses_are_exact():
    g = rng.stream(0, "graph")
    a = np.stack([g.integers(p - 9, p, (3, 70)) for p in field.PRIMES])
    b = g.integers(field.MODULUS - 9, field.MODULUS, (70, 4), dtype=np.uint64)
    result = field.product(a, b)
    assert (result < field.MODULUS).all()
    for p, rows in zip(field.PRIMES, a, strict=True):
        exact = rows.astype(object) @ b.astype(object) % p
        np.testing.assert_array_equal(result.astype(object) % p, exact)
    points = [1, 2, 5, 9]
    for p, inverse, power in zip(
        field.PRIMES, field.inverse_powers(points), field.powers(points, 4), strict=True
    ):
        np.testing.assert_array_equal(inverse @ power % p, np.eye(4))


def test_the_largest_terms_of_the_longest_product_are_exact():
    a = np.stack([np.full((1, field.LONGEST), p - 1) for p in field.PRIMES])
    b = np.full((field.LONGEST, 1), field.MODULUS - 1, np.uint64)
    assert field.product(a, b).tolist() == [[field.LONGEST]]  # (-1) (-1), so many times
    with pytest.raises(ValueError, match="65537 terms"):
        field.product(np.zeros((3, 1, field.LONGEST + 1)), b)


def test_coded_masks_of_a_small_field():
    rows = field.powers_modulo([1, 2, 3], 2, 17)
    first, second = np.array([4, 3]), np.array([6, 5])
    assert [(rows @ mask % 17).tolist() for mask in (first, second)] == [[7, 10, 13], [11, 16, 4]]
    decode = field.inverse_powers_modulo([1, 3], 17)
    assert (decode @ [(7 + 11) % 17, (13 + 4) % 17] % 17)[0] == 4 + 6


@pytest.mark.parametrize("n, degree", [(2, 2), (5, 2), (6, 3), (7, 3), (8, 4), (8, 7), (9, 20)])
def test_harary_graph_is_symmetric_and_regular(n, degree):
    clients = [3 * k for k in range(n)]
    graph = Harary(clients, degree, rng.stream(0, "graph"))
    degrees = {len(graph.neighbours(k)) for k in clients}
    assert degrees == {min(n - 1, degree + (degree % 2) * (n % 2))}
    for k in clients:
        assert k not in graph.neighbours(k)
        assert all(k in graph.neighbours(j) for j in graph.neighbours(k))
        assert graph.count(k, set(clients[1:])) == len(set(graph.neighbours(k)) - {0})


def test_default_degree():
    assert [default_degree(n) for n in (1, 2, 3, 100, 128, 129)] == [2, 2, 4, 14, 14, 16]


@pytest.mark.parametrize("make", [pairwise_sum, coded_sum])
@pytest.mark.parametrize("stage", [KEYS, SHARES, INPUTS, ANSWERS])
def test_each_allowed_set_of_drop_outs_leaves_the_sum_of_those_that_have_sent(make, stage):
    values = inputs()
    for n_dropped in range(N - T + 1):
        for dropped in combinations(range(N), n_dropped):
            attendance = all_at(stage, dropped)
            assert attendance.failed_stage(Complete(attendance.keys), T) is None
            execution = make(attendance)
            np.testing.assert_array_equal(
                total(execution, values), values[list(attendance.inputs)].sum(0)
            )


@pytest.mark.parametrize("stage", [KEYS, SHARES, INPUTS, ANSWERS])
def test_one_drop_out_more_fails_at_its_stage(stage):
    for dropped in combinations(range(N), N - T + 1):
        attendance = all_at(stage, dropped)
        assert attendance.failed_stage(Complete(range(N)), T) == stage


def test_a_sparse_graph_fails_where_a_neighbourhood_is_too_small():
    graph = Harary(range(12), 2, rng.stream(0, "graph"))
    k = 0
    answering = [j for j in range(12) if j not in graph.neighbours(k)]
    attendance = Attendance(range(12), range(12), range(12), answering)
    assert attendance.failed_stage(graph, 2) == ANSWERS
    assert attendance.failed_stage(graph, 1) is None
    assert attendance.failed_stage(Complete(range(12)), 10) is None


@pytest.mark.parametrize("degree", [2, 3, N - 1])
def test_sparse_masks_leave_the_same_sum(degree):
    values = inputs()
    attendance = Attendance(range(N), range(N), [0, 1, 3, 4], [0, 1, 3, 4])
    graph = Harary(range(N), degree, rng.stream(1, "graph"))
    assert attendance.failed_stage(graph, 2) is None
    execution = pairwise_sum(attendance, graph, t=2)
    np.testing.assert_array_equal(total(execution, values), values[[0, 1, 3, 4]].sum(0))


MIXED = Attendance(range(8), [0, 1, 2, 4, 5, 6, 7], [1, 2, 4, 5, 7], [1, 2, 5])


@pytest.mark.parametrize(
    "graph, t", [(Complete(range(8)), 3), (Harary(range(8), 6, rng.stream(0, "graph")), 2)]
)
def test_bytes_of_the_messages_are_those_of_the_formulas(graph, t):
    execution = pairwise_sum(MIXED, graph, t)
    total(execution, inputs(8))
    assert execution.costs == pairwise_cost(MIXED, graph, WORDS, range(8))
    shorter = pairwise_sum(MIXED, graph)
    shorter.prepare(last=KEYS)
    assert shorter.costs == pairwise_cost(MIXED, graph, WORDS, range(8), last=KEYS)


def test_bytes_of_coded_messages_are_those_of_the_formulas():
    execution = coded_sum(MIXED)
    total(execution, inputs(8))
    assert execution.piece == 19  # ceil(37 / (3 - 1))
    assert execution.costs == coded_cost(MIXED, WORDS, execution.piece, range(8))


@pytest.mark.parametrize("n, m, expansion", [(2**10, 2**20, 1.73), (2**14, 2**24, 1.98)])
def test_expansion_is_the_published_one(n, m, expansion):
    """Bonawitz et al. 2017: 16-bit values, 256-bit keys and shares, sent values of 16 + log2 n."""
    bits = 16 + np.ceil(np.log2(n))
    sizes = Sizes(key=32, share=32, tag=0, value=bits / 8)
    everybody = Attendance(*(range(n) for _ in range(4)))
    (cost,) = pairwise_cost(everybody, Complete(range(n)), m, [0], sizes=sizes).values()
    assert sum(cost.up) + sum(cost.down) == 2 * n * 32 + (5 * n - 4) * 32 + m * bits / 8 + n / 8
    assert round((sum(cost.up) + sum(cost.down)) / (2 * m), 2) == expansion


def test_what_one_client_sends_looks_random():
    """Chi-square of the top bytes of masked zeros: 255 degrees of freedom, within 5 sigma."""
    attendance = all_at(ANSWERS, ())
    words = 1 << 16
    pairs = PairwiseSum(attendance, words, Complete(range(N)), T, range(N), draw, dict)
    coded = CodedSum(attendance, words, T, 1, range(N), draw, dict)
    for execution, shift in ((pairs, 56), (coded, field.BITS - 8)):
        execution.prepare()
        sent = execution.masked(2, np.zeros(words, np.uint64)).reshape(-1)
        counts = np.bincount((sent >> sent.dtype.type(shift)).astype(int), minlength=256)
        expected = len(sent) / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)
        assert abs(np.corrcoef(sent[:-1].astype(float), sent[1:].astype(float))[0, 1]) < 0.02


def test_contradicting_answers_are_noticed():
    execution = coded_sum(all_at(KEYS, ()))
    execution.prepare()
    result = execution.empty()
    for k in range(N):
        execution.add(result, execution.masked(k, np.zeros(WORDS, np.uint64)))
    execution.members[0]._sum += np.uint64(1)
    with pytest.raises(ValueError, match="contradict"):
        execution.unmask(result)


def test_changed_shares_under_way_are_noticed():
    execution = pairwise_sum(all_at(KEYS, ()))
    execution.prepare()
    message = execution._sealed[0][1]
    execution._sealed[0][1] = bytes([message[0] ^ 1]) + message[1:]
    with pytest.raises(ValueError, match="client 0"):
        execution.unmask(execution.empty())
