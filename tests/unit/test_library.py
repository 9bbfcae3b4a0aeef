"""Models of torchvision and timm by name, and weights from a file."""

import shlex
from importlib.util import find_spec

import pytest
import torch

import hpcfed
from hpcfed.core.compat import import_torchvision
from hpcfed.core.errors import ConfigError
from hpcfed.core.registry import refuse_import
from hpcfed.core.rng import scoped
from hpcfed.main import main
from hpcfed.models import build, check, missing_head, represents
from hpcfed.models.assign import assign
from hpcfed.models.finetuning import Finetuning
from tests.contract import toy

NAME = "torchvision:shufflenet_v2_x0_5"
SHAPE = (3, 32, 32)


def images(n, shape=SHAPE):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(2))


def theirs(classes, **options):
    with scoped(5, "theirs"):
        net = import_torchvision().models.get_model(
            NAME.partition(":")[2], weights=None, num_classes=classes, **options
        )
    return net.eval()


def ours(path, classes):
    with scoped(1, "init"):
        model = build(NAME, SHAPE, classes)
    Finetuning(weights={NAME: str(path)}).start(model, NAME)
    return model.eval()


def test_a_model_of_torchvision_has_its_last_linear_layer_as_head_and_the_data_s_classes():
    with scoped(1, "init"):
        model = build(NAME, (1, 28, 28), 7)
    assert model(images(2, (1, 28, 28))).shape == (2, 7)
    assert model.head.weight.shape == (7, 1024) and model.last == "fc"
    assert represents(NAME, (1, 28, 28), 7, 512) == 1024
    assert model(images(1, (1, 28, 28))).shape == (1, 7)  # a last batch of one example


def test_weights_of_a_file_give_the_model_s_own_logits(tmp_path):
    net = theirs(4)
    torch.save(net.state_dict(), tmp_path / "w.pt")
    assert torch.allclose(ours(tmp_path / "w.pt", 4)(images(3)), net(images(3)), atol=1e-6)


def test_a_head_of_other_classes_is_left_as_it_is_drawn(tmp_path):
    net = theirs(10)
    torch.save({"state_dict": net.state_dict()}, tmp_path / "w.pt")
    model = ours(tmp_path / "w.pt", 4)
    with scoped(1, "init"):
        weights = build(NAME, SHAPE, 4)
    assert torch.equal(model.head.weight, weights.head.weight)
    assert torch.equal(model.state_dict()["body.conv5.0.weight"], net.conv5[0].weight)


def test_a_file_that_is_none_of_this_model_or_holds_code_is_refused(tmp_path):
    torch.save({"conv.weight": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match="it lacks body.conv1.0.weight"):
        ours(tmp_path / "other.pt", 4)
    torch.save(theirs(4), tmp_path / "whole.pt")
    with pytest.raises(ConfigError, match="hpcfed runs no code of a file"):
        ours(tmp_path / "whole.pt", 4)
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(ConfigError, match="models.weights: .*text.pt"):
        ours(tmp_path / "text.pt", 4)


@pytest.mark.parametrize(
    "name, message",
    [
        ("torchvision:resnet81", "did you mean '?.*resnet"),
        ("torchvision:vit_b_16", "cannot be made for these data"),
        ("torchvision:../x", "write it as torchvision:resnet18"),
    ],
)
def test_objects_that_are_not_models_are_refused(name, message):
    with pytest.raises(ConfigError, match=message), torch.device("meta"):
        build(name, (3, 68, 68), 4)


def test_a_model_of_torchvision_that_ends_in_a_convolution_has_no_head():
    assert "no linear layer" in missing_head("torchvision:squeezenet1_0", (3, 68, 68), 4, 16)


def test_models_of_libraries_take_images_and_need_no_leave_to_be_imported():
    with pytest.raises(ConfigError, match="takes images"):
        check(NAME, (32,), vocabulary=100)
    refuse_import([NAME, "timm:resnet18"], (), "job", "")
    with pytest.raises(ConfigError, match="mine:Net"):
        refuse_import(["mine:Net"], (), "job", "")


def test_a_model_of_timm_has_its_last_linear_layer_as_head():
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    with scoped(1, "init"):
        model = build("timm:test_resnet", (1, 32, 32), 5)
        transformer = build("timm:test_vit", (3, 64, 64), 5)
    assert model(images(2, (1, 32, 32))).shape == (2, 5) and model.last
    assert transformer(images(2, (3, 64, 64))).shape == (2, 5)


def test_without_timm_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(ConfigError, match=r'pip install "hpcfed\[timm\]"'):
        build("timm:resnet18", SHAPE, 4)


SMALL = shlex.split("--clients 2 --data.train_limit 60 --rounds 1 --models.d 16 --quiet")


def test_models_of_libraries_in_a_mix_get_a_projection_to_one_width(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = theirs(4)
    net.conv1[0] = torch.nn.Conv2d(1, 24, 3, 2, 1, bias=False)
    torch.save(net.state_dict(), "w.pt")
    flags = [*SMALL, "--models.mix", f"{NAME},cnn", "--models.weights", "w.pt,none"]
    assert main([*flags, "--algorithm.name", "fedproto", "--out", "run"]) == 0
    assert hpcfed.load("run").architectures == [f"{NAME}~project_16", "cnn"]
    model = hpcfed.load_model("run", client=0)
    assert model.represent(images(2, (1, 16, 16))).shape == (2, 16)
    settings = Finetuning(weights={NAME: "w.pt"})
    model = build(f"{NAME}~project_16", (1, 16, 16), 4, 16)
    settings.start(model, f"{NAME}~project_16")
    assert torch.equal(model.state_dict()["body.conv5.0.weight"], net.conv5[0].weight)


def test_projections_are_added_only_if_widths_differ_for_any_method():
    def kinds(mix, d, method="local"):
        job = toy.job(method, "--models.mix", mix, "--models.d", str(d))
        return set(assign(job, (1, 16, 16), 4))

    assert kinds(NAME, 512) == {NAME}
    assert kinds(f"{NAME},{NAME}", 512) == {NAME}
    assert kinds(f"{NAME},cnn", 1024) == {NAME, "cnn"}
    for method in ("local", "fd", "lgfedavg"):
        assert kinds(f"{NAME},cnn", 512, method) == {f"{NAME}~project_512", "cnn"}
