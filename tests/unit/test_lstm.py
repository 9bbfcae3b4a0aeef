"""The models for text: shapes, padding that changes nothing, training in the flat vector, the work
by hand.
"""

import copy

import pytest
import torch
from torch.nn import functional as F

from hpcfed.core.errors import ConfigError
from hpcfed.core.params import Params
from hpcfed.core.rng import scoped
from hpcfed.models import MODELS, build, check
from hpcfed.models.cost import cost, work
from hpcfed.models.flat import Skeleton
from hpcfed.models.lstm import HIDDEN, WORD
from hpcfed.training.server import call

LENGTH, WORDS = 8, 30
TEXT = [name for name, entry in MODELS.items() if entry.text and entry.cite == "makhija2022"]
each_model = pytest.mark.parametrize("name", TEXT)


def new(name: str, key: int = 0, **options: object):
    with scoped(1, "init", key):
        return build(name, (LENGTH,), 3, d=6, vocabulary=WORDS, **options)


def texts(n: int = 4) -> torch.Tensor:
    """[n, LENGTH]: texts of 1, 2, ... tokens, and padding."""
    x = torch.randint(2, WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(0))
    return x * (torch.arange(LENGTH) < torch.arange(1, n + 1)[:, None])


def test_there_are_two_models_for_text_with_one_and_two_layers():
    assert TEXT == ["lstm-1", "lstm-2"] and [new(name).body.lstm.num_layers for name in TEXT] == [
        1,
        2,
    ]


@each_model
def test_tokens_become_a_representation_that_is_not_negative_and_logits(name):
    model = new(name).eval()
    z = model.body(texts())
    assert z.shape == (4, 6) and (z >= 0).all() and model(texts()).shape == (4, 3)
    assert [n for n, _ in model.named_parameters()][-2:] == ["head.weight", "head.bias"]


@each_model
def test_padding_and_other_texts_of_a_batch_change_nothing(name):
    model, x = new(name).eval(), texts()
    for i, text in enumerate(x):
        assert torch.allclose(model(x)[i], model(text[None, : i + 1])[0], atol=1e-6)
    longer = F.pad(x, (0, 5))
    assert torch.allclose(model(longer), model(x), atol=1e-6)
    order = x.flip(1) * (x.flip(1) > 0)
    assert not torch.allclose(model(order)[3], model(x)[3], atol=1e-4)  # the order of words matters


@each_model
def test_a_text_with_padding_before_it_or_in_it_is_read_to_its_end(name):
    model, x = new(name).eval(), torch.tensor([[0, 0, 0, 0, 0, 3, 4, 5], [3, 0, 4, 0, 5, 0, 0, 0]])
    ends = [
        model.body.lstm(model.body.words(text))[0][i] for text, i in zip(x, (7, 4), strict=True)
    ]
    assert torch.allclose(model.body(x), model.body.first(torch.stack(ends)).relu(), atol=1e-6)


@each_model
def test_an_empty_text_is_read_and_trains_all_but_the_padding(name):
    model = new(name)
    model(torch.zeros(1, LENGTH, dtype=torch.long)).sum().backward()
    assert model(torch.zeros(1, LENGTH, dtype=torch.long)).isfinite().all()
    assert not model.body.words.weight.grad.any()


@each_model
def test_training_in_the_flat_vector_is_that_of_the_plain_module(name):
    plain = new(name)
    skeleton, y = Skeleton(copy.deepcopy(plain)), torch.tensor([0, 1, 2, 0])
    for model, zero in (
        (plain, lambda: plain.zero_grad(set_to_none=False)),
        (skeleton.model, skeleton.zero_grad),
    ):
        descent = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(3):
            zero()
            F.cross_entropy(model(texts()), y).backward()
            descent.step()
    pairs = zip(plain.parameters(), skeleton.model.parameters(), strict=True)
    assert all(torch.equal(p, q) and torch.equal(p.grad, q.grad) for p, q in pairs)
    flat = skeleton.flat.untyped_storage().data_ptr()
    assert all(p.untyped_storage().data_ptr() == flat for p in skeleton.model.parameters())
    assert not skeleton.view("body.words.weight")[0].any()


@each_model
def test_other_weights_can_replace_the_modules_own(name):
    skeleton, other = Skeleton(new(name)), new(name, key=1)
    params = Params(dict(other.named_parameters()))
    assert torch.equal(call(skeleton, params, texts()), other(texts()))
    skeleton.load(Skeleton(copy.deepcopy(other)).flat)
    assert torch.equal(skeleton.model(texts()), other(texts()))


@each_model
def test_two_passes_are_the_same_bits(name):
    results = []
    for _ in range(2):
        model = new(name)
        F.cross_entropy(model(texts()), torch.tensor([0, 1, 2, 0])).backward()
        results.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_work_of_an_lstm_by_hand():
    layer = 4 * HIDDEN * (WORD + HIDDEN)
    first, second = LENGTH * layer, LENGTH * 4 * HIDDEN * 2 * HIDDEN
    ends, written = HIDDEN * 6 + 6 * 3, LENGTH * WORD + 6 + 3
    assert work("lstm-1", (LENGTH,), 3, 6, WORDS) == (
        first + ends,
        LENGTH * 6 * HIDDEN + written,
        LENGTH + 3,
    )
    assert work("lstm-2", (LENGTH,), 3, 6, WORDS) == (
        first + second + ends,
        2 * LENGTH * 6 * HIDDEN + written,
        2 * LENGTH + 3,
    )
    before = torch.get_rng_state()
    costs = [cost(name, (32,), 2, vocabulary=10_000) for name in TEXT]
    assert 1.8 < costs[1] / costs[0] < 2.1 and torch.equal(
        before, torch.get_rng_state()
    )  # measured: 2.0


def test_models_for_images_and_texts_are_not_mixed_up():
    with pytest.raises(
        ConfigError,
        match=r"model cnn takes images .*, not texts of shape \[8\]; use one of: lstm-1",
    ):
        check("cnn", (LENGTH,), WORDS)
    with pytest.raises(ConfigError, match=r"model mlp takes images, not texts of shape \[8\]"):
        check("mlp", (LENGTH,), WORDS)
    with pytest.raises(
        ConfigError,
        match=r"model lstm-1 takes texts, not inputs of shape \[1, 8, 8\]; use one of: r",
    ):
        check("lstm-1", (1, 8, 8))
    with pytest.raises(ConfigError, match="lstm-2 has no sub-models"):
        check("lstm-2@0.5", (LENGTH,), WORDS)
    check("lstm-1+lstm-2", (LENGTH,), WORDS)
