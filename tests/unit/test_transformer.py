"""Transformers for texts and tables, our own and by name: padding, pooling, work by hand, and the
same bits from engines and ranks.
"""

import json
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hpcfed.comm import Serial
from hpcfed.config.load import load
from hpcfed.core.errors import ConfigError
from hpcfed.core.rng import scoped
from hpcfed.models import MODELS, build, check
from hpcfed.models.cost import Work, _work, work
from hpcfed.models.transformer import HEADS, INNER, WIDTH, Attend
from tests.contract import toy
from tests.contract.test_methods_on_text import job
from tests.threads import spmd
from tests.unit.test_lstm import LENGTH, WORDS, texts
from tests.unit.test_lstm import new as of_texts
from tests.unit.test_stacked import distance

TEXT = ["transformer-1", "transformer-2", "transformer-4"]
SGD = ("--local.optimiser", "sgd", "--local.lr", "0.05")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def test_attention_is_torchs_and_padding_is_not_read():
    q, k, v = torch.randn(3, 2, HEADS, 5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(Attend()(q, k, v, None), attention(q, k, v), atol=1e-6)
    mask = torch.tensor([[True] * 3 + [False] * 2] * 2)
    want = attention(q, k[:, :, :3], v[:, :, :3])
    assert torch.allclose(Attend()(q, k, v, mask), want, atol=1e-6)


@pytest.mark.parametrize("name", TEXT)
def test_texts_become_a_representation_in_which_padding_changes_nothing(name: str):
    model, x = of_texts(name).eval(), texts()
    z = model.body(x)
    assert z.shape == (4, 6) and (z >= 0).all() and model(x).shape == (4, 3)
    for i, text in enumerate(x):
        assert torch.allclose(model(x)[i], model(text[None, : i + 1])[0], atol=1e-5)
    assert not torch.allclose(model(x[:, [1, 0, 2, 3, *range(4, LENGTH)]])[3], model(x)[3])


@pytest.mark.parametrize("name", TEXT)
def test_an_empty_text_is_read_and_does_not_train_the_padding(name: str):
    model, nothing = of_texts(name), torch.zeros(1, LENGTH, dtype=torch.long)
    model(nothing).sum().backward()
    assert model(nothing).isfinite().all() and not model.body.words.weight.grad[0].any()


def test_the_next_character_is_said_of_the_last_one_and_0_is_a_character():
    model, x = of_texts("transformer-char").eval(), texts(4)[3:]
    other = x.clone()
    other[0, 4] = 5  # where texts() has padding
    assert not torch.allclose(model(other), model(x))
    assert model(x[:, :4]).shape == (1, 3)


def test_a_row_of_numbers_is_a_token_a_column():
    with scoped(1, "init"):
        model = build("ft-transformer", (7,), 2, d=6).eval()
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    assert model.body(x).shape == (5, 6) and model(x).shape == (5, 2)
    body, order = model.body, torch.tensor([3, 1, 0, 2, 6, 5, 4])
    want = model(x)
    for part in (body.weight, body.bias):
        part.data = part.data[order]
    assert torch.allclose(model(x[:, order]), want, atol=1e-6)  # columns have no places
    for shape in ((1, 8, 8), (2, 5)):
        with pytest.raises(ConfigError, match="ft-transformer takes rows of numbers, not"):
            check("ft-transformer", shape)
    with pytest.raises(ConfigError, match="its heads are not cut"):
        check("ft-transformer@0.5", (7,))


def test_the_work_of_a_transformer_by_hand():
    layer = LENGTH * WIDTH * (3 * WIDTH + WIDTH + 2 * INNER)
    attend = 2 * LENGTH * LENGTH * WIDTH
    ends = WIDTH * 6 + 6 * 3
    assert work("transformer-1", (LENGTH,), 3, 6, WORDS).multiply_adds == layer + attend + ends
    two = work("transformer-2", (LENGTH,), 3, 6, WORDS).multiply_adds
    assert two == 2 * (layer + attend) + ends


# Engines and ranks


def test_recorded_and_stacked_steps_equal_those_of_the_eager_engine():
    flags = ("--models.mix", "transformer-1", "--rounds", "2", "--data.partition", "iid", *SGD)
    of = lambda engine: job("fedavg", *flags, "--training.engine", engine)  # noqa: E731
    rounds = toy.start(Serial(), of("traced"))
    rounds.step()
    (module,) = [s for (_, owner), s in rounds.fed.store.skeletons.items() if owner == "clients"]
    assert module.captured and None not in module.captured.values()
    eager, traced = (toy.run(Serial(), of(engine)) for engine in ("eager", "traced"))
    assert toy.differences(traced, eager) == []
    stacked = toy.run(Serial(), of("stacked"))
    assert toy.differences(stacked.state, eager.state)  # several clients in one product
    assert distance(stacked, eager) < 1e-4


def test_fedtype_trains_transformers_beside_a_small_one_to_the_same_bits_on_any_ranks():
    asked = job("fedavg", "--models.mix", "transformer-1").data.name
    flags = ("--models.mix", "transformer-2,lstm-1", "--models.proxy", "transformer-1", "--rounds")
    words = [f"{toy.__file__[:-3]}.toml", "--algorithm.name", "fedtype", "--data.name", asked]
    loaded = load([*words, "--data.tokens", "6", *flags, "2"], environ={})
    want = toy.run(Serial(), loaded)
    assert np.isfinite(want.scores).any()
    for got in spmd(2, partial(toy.run, job=loaded)):
        assert toy.differences(got, want) == []


# By name

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    """A folder with the configuration of a tiny encoder."""
    import transformers

    path = tmp_path_factory.mktemp("tiny")
    transformers.DistilBertConfig(
        dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=4
    ).save_pretrained(path)
    return f"hf:{path}"


@needs_transformers
def test_an_encoder_of_transformers_reads_our_tokens_and_has_our_head(tiny: str):
    model, x = of_texts(tiny).eval(), texts()
    assert model.body(x).shape == (4, 6) and model(x).shape == (4, 3)
    assert model.body.encoder.embeddings.word_embeddings.num_embeddings == WORDS
    for i, text in enumerate(x):
        assert torch.allclose(model(x)[i], model(text[None, : i + 1])[0], atol=1e-5)
    assert model(torch.zeros(1, LENGTH, dtype=torch.long)).isfinite().all()
    again = of_texts(tiny)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )
    with pytest.raises(ConfigError, match="takes texts, not inputs of shape"):
        check(tiny, (1, 8, 8))


@needs_transformers
def test_a_linear_layer_of_gpt_2_costs_as_much_as_the_same_layer_of_torch(tiny: str):
    layer = import_module("transformers.pytorch_utils").Conv1D(6, 4)  # 4 inputs
    both = torch.nn.Sequential(torch.nn.Linear(4, 6), layer)
    work_of_both = [_work(each, torch.zeros(1, 5, 6)) for each in both]
    assert work_of_both == [Work(5 * 6 * 4, 5 * 6, 1)] * 2


@needs_transformers
def test_an_encoder_of_transformers_trains_and_ranks_do_not_matter(tiny: str):
    loaded = job("fedavg", "--models.mix", tiny, "--rounds", "2")
    want = toy.run(Serial(), loaded)
    assert all(toy.differences(got, want) == [] for got in spmd(2, partial(toy.run, job=loaded)))


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("t5", {}, "is not an encoder of texts"),
        ("vit", {}, "is not an encoder of texts"),
        ("bert", {"hidden_size": -8}, "is not an encoder of texts"),
        ("bert", {"type_vocab_size": 0}, "is not an encoder of texts"),
        ("bert", {"num_hidden_layers": 10**7}, "it has 10,000,000 layers"),
    ],
)
def test_a_configuration_of_no_encoder_is_one_message(tmp_path, kind, changes, words):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "d_model": 16}
    small |= {"intermediate_size": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    text = {"model_type": kind} | small | changes
    (tmp_path / "config.json").write_text(json.dumps(text))
    with pytest.raises(ConfigError, match=words):
        of_texts(f"hf:{tmp_path}")


@needs_transformers
def test_a_configuration_that_is_not_there_is_not_downloaded(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"a run downloads nothing; .*AutoConfig.from_pretrained"):
        of_texts("hf:nobody/no-such-encoder")
    with pytest.raises(ConfigError, match="write it as hf:distilbert-base-uncased"):
        of_texts("hf:a b")


def test_without_transformers_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ConfigError, match=r'pip install "hpcfed\[hf\]"'):
        of_texts("hf:distilbert-base-uncased")
    assert "transformer-1" in MODELS
