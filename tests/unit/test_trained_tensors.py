"""A trained model is the model that was trained, whatever its code holds beside its parameters."""

import pytest
import torch

from hpcfed.core.errors import ConfigError
from hpcfed.core.rng import scoped
from hpcfed.models import build, files, for_shapes, represents
from hpcfed.models.flat import Layout, Skeleton
from hpcfed.models.pretrained import load
from hpcfed.models.trained import About, assemble_model
from hpcfed.results.trained.scoring import copies

CODE = """
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self, num_classes, scale=1.0):
        super().__init__()
        self.fc = nn.Linear(16, 8)
        self.last = nn.Linear(8, num_classes)

    def extra(self):
        return 0.0

    def forward(self, x):
        return self.last((self.fc(x.flatten(1)) + self.extra()).relu())

class Unsaved(Base):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.register_buffer("place", torch.linspace(-1, 1, 8), persistent=False)
        self.register_buffer("shift", torch.arange(8), persistent=False)

    def extra(self):
        return self.place + self.shift

class Attribute(Base):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.place = torch.linspace(-1, 1, 8)

    def extra(self):
        return self.place

class Reads(Base):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.rates = [v.item() for v in torch.linspace(0, 0.1, 3)]

    def extra(self):
        return self.rates[1]

class Tied(Base):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.inner = nn.Linear(8, 8)
        self.outer = self.inner

    def forward(self, x):
        return self.last(self.outer(self.inner(self.fc(x.flatten(1))).relu()))

class Parted(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU())
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.body(x))

class Shares(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv = nn.Conv2d(1, num_classes, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3)).softmax(1)

class LogShares(Shares):
    def forward(self, x):
        return self.conv(x).mean((2, 3)).log_softmax(1)

class Cumulative(Base):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.norm = nn.BatchNorm1d(8, momentum=None)
"""
SHAPE, CLASSES, D = (1, 4, 4), 3, 8


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    (tmp_path / "unsaved_models.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)


def trained(name: str) -> tuple[torch.nn.Module, About]:
    """A model with all tensors changed, as training and averaging change them."""
    kind = f"unsaved_models:{name}"
    with scoped(0, "unsaved"):
        skeleton = Skeleton(build(kind, SHAPE, CLASSES, D))
        skeleton.flat += 0.1
    about = About(kind, SHAPE, ("a", "b", "c"), D, False, 0, (0.0,), (1.0,), 0, 1, "")
    return skeleton.model.eval(), about


@pytest.mark.parametrize("name", ["Unsaved", "Attribute", "Reads", "Parted", "Tied"])
def test_a_model_of_own_code_predicts_as_the_one_that_was_trained(name, tmp_path):
    model, about = trained(name)
    x = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(0))
    assembled = assemble_model(about, copies("model", model))
    assert torch.equal(assembled(x), model(x))
    (tmp_path / "one.safetensors").write_bytes(files.encode(assembled))
    again = files.read(tmp_path / "one.safetensors", [about.architecture])
    assert torch.equal(again(x), model(x))


def test_code_that_reads_its_tensors_is_built_where_shapes_alone_are_wanted():
    kind, drawn = "unsaved_models:Reads", torch.random.get_rng_state()
    assert represents(kind, SHAPE, CLASSES, D) == 8
    with for_shapes(kind):
        assert Layout.of(build(kind, SHAPE, CLASSES, D)).n_params == 16 * 8 + 8 + 8 * 3 + 3
    for name in ("mlp", "torchvision:resnet18"):  # no weights are made
        with for_shapes(name):
            assert build(name, (3, 32, 32), CLASSES, D).head.weight.is_meta
    assert torch.equal(drawn, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "name, words",
    [
        ("Shares", "the model ends in softmax; return what it is applied to"),
        ("LogShares", "the model ends in log_softmax; return what it is applied to"),
        ("Cumulative", "norm has momentum = None: its running statistics depend on"),
    ],
)
def test_what_training_would_get_wrong_is_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        build(f"unsaved_models:{name}", SHAPE, CLASSES, D)


def test_a_state_dict_of_a_class_with_a_body_and_a_head_of_its_own_is_loaded(tmp_path):
    import unsaved_models

    theirs = unsaved_models.Parted(CLASSES)
    torch.save(theirs.state_dict(), tmp_path / "theirs.pt")
    model = build("unsaved_models:Parted", SHAPE, CLASSES, D)
    load(model, "unsaved_models:Parted", tmp_path / "theirs.pt")
    x = torch.rand(2, *SHAPE)
    assert torch.equal(model(x), theirs(x))


def test_a_loaded_encoder_of_transformers_predicts_as_the_one_that_was_trained(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
    ).save_pretrained(tmp_path)
    kind = f"hf:{tmp_path}"
    with scoped(0, "encoder"):
        model = build(kind, (6,), CLASSES, D, False, 20).eval()
    about = About(kind, (6,), ("a", "b", "c"), D, False, 20, (), (), 0, 1, "")
    x = torch.arange(12).view(2, 6)
    for _ in range(2):  # the second one is built beside a model that is there
        assert torch.equal(assemble_model(about, copies("model", model))(x), model(x))
