"""Streams are what their name says, everywhere and always; the global generator is only
borrowed.
"""

import random

import numpy as np
import pytest
import torch

from hpcfed.core.rng import number, scoped, scoped_everywhere, stream, torch_stream

pytestmark = pytest.mark.quick


def test_a_stream_is_the_same_for_the_same_name_and_another_for_any_other():
    draws = {
        key: stream(*key).random()
        for key in (
            (0, "a", 1, 2),
            (0, "a", 2, 1),
            (0, "b", 1, 2),
            (1, "a", 1, 2),
            (0, "a", 12),
            (0, "a1", 2),
        )
    }
    assert len(set(draws.values())) == len(draws)
    assert stream(0, "a", 1, 2).random() == draws[0, "a", 1, 2]


def test_the_number_of_a_name_never_changes():
    assert number(0, "cohort", 0) == 48731666451856328233336213875574869880  # old runs depend on it
    assert 0 <= number(7, "x") < 2**128


def test_a_number_and_its_text_are_different_keys():
    assert number(0, "a", 1) != number(0, "a", "1")


def test_torch_streams_are_repeatable_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    draws = [torch.rand(3, generator=torch_stream(0, "x", k)).tolist() for k in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_inside_a_scope_the_global_generator_is_named_and_after_it_as_before():
    torch.rand(1)
    before = torch.random.get_rng_state()
    draws = []
    for key in ("a", "a", "b"):
        with scoped(0, key):
            draws.append(torch.rand(2).tolist())
    assert draws[0] == draws[1] != draws[2]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_error_inside_a_scope_restores_the_generator_too():
    before = torch.random.get_rng_state()
    with pytest.raises(ZeroDivisionError), scoped(0, "a"):
        torch.rand(1).item() / 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_scope_everywhere_seeds_all_global_generators_and_notices_a_draw_from_any():
    draws = []
    for draw in (np.random.rand, random.random, lambda: torch.rand(1).item()):
        with scoped(0, "a", everywhere=True) as drawn:
            before = drawn()
            draws.append(draw())
            assert (before, drawn()) == (False, True)
        with scoped(0, "a", everywhere=True):
            assert draw() == draws[-1]


def test_a_scope_for_users_code_names_all_global_generators_also_in_another_scope():
    def draw():
        return torch.rand(1).item(), np.random.rand(), random.random()

    np.random.seed(3)
    random.seed(3)
    before = draw()
    np.random.seed(3)
    random.seed(3)
    draws = []
    for _ in range(2):
        with scoped_everywhere(1, "round"):
            draws.append(draw())
            with scoped_everywhere(1, "turn", len(draws)):
                np.random.seed(5)
                draw()
            draws.append(draw())
    assert draws[:2] == draws[2:] and draws[0] != draws[1]
    assert draw()[1:] == before[1:]


def test_scopes_of_two_threads_that_overlap_leave_generators_that_later_scopes_restore():
    first, second = (scoped_everywhere(1, "rank", rank) for rank in range(2))
    for scope in (first, second):
        scope.__enter__()
    for scope in (first, second):  # in the order in which threads may leave
        scope.__exit__(None, None, None)
    np.random.seed(3)
    before = np.random.rand()
    np.random.seed(3)
    with scoped_everywhere(1, "round"), scoped_everywhere(1, "turn"):
        np.random.rand()
    assert np.random.rand() == before


def test_a_scope_records_whether_something_was_drawn():
    with scoped(0, "a") as scope:
        torch.rand(2, generator=torch.Generator())
        assert not scope()
        torch.rand(2)
        assert scope()
