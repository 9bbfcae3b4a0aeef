"""Parameter-efficient training: only named tensors, or LoRA, are trained and sent."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hpcfed
from hpcfed.algorithms.global_model.fedclip import contrast_pairs
from hpcfed.comm import Serial
from hpcfed.core import rng
from hpcfed.core.compat import prepare_torchvision
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.engine.job_warnings import odd_settings
from hpcfed.models import build, clip, pretrained
from hpcfed.models.finetuning import Finetuning, plain_state
from hpcfed.results.trained.export import models
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from tests.contract import toy
from tests.contract.models import counted, load, saved_run, with_tests
from tests.threads import spmd

HEAD = ("--models.train", "head.*")
LORA = ("--models.lora", "2")
MLP = ("--models.mix", "mlp")
BYTES = {  # of float32, by hand: the head [4, 16] and [4]; the linear layer reads 2x2x16 wide maps
    HEAD: 4 * (4 * 16 + 4),
    LORA: 4 * (4 * 16 + 4) + 4 * 2 * (16 + 16),
}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({1: torch.ones(2)}, "holds no state dict"),
        ({"a": torch.eye(2).to_sparse()}, "a is sparse, quantised or without values"),
    ],
)
def test_weights_that_are_no_plain_tensors_are_one_message(tmp_path, values, words):
    torch.save(values, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=words):
        pretrained.read(tmp_path / "w.pt")


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "swift", "local"])
def test_training_all_names_is_the_plain_run_to_the_bit(method):
    plain, every = (
        toy.run(Serial(), toy.job(method, *flags)) for flags in ((), ("--models.train", "*"))
    )
    assert toy.differences(every, plain) == []


@pytest.mark.parametrize("flags", BYTES, ids=lambda flags: flags[0])
def test_only_trained_tensors_are_sent(flags):
    run = toy.run(Serial(), toy.job("fedavg", *flags))
    took_part = run.column("cohort").astype(bool)
    for way in ("up", "down"):
        assert set(run.column(way)[took_part]) == {BYTES[flags]}
    assert sum(v.numel() for v in run.state.values()) * 4 == BYTES[flags]


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "swift"])
def test_ranks_and_engines_do_not_matter_for_lora(method):
    flags = (*LORA, "--models.mix", "small", "--rounds", "2", "--training.engine")
    want = toy.run(Serial(), toy.job(method, *flags, "eager"))
    for got in spmd(3, lambda comm: toy.run(comm, toy.job(method, *flags, "auto"))):
        assert toy.differences(got, want) == []
    traced = toy.run(Serial(), toy.job(method, *flags, "traced"))
    assert toy.differences(traced, want) == []


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_a_run_that_is_resumed_is_the_one_that_went_through(method, tmp_path):
    job = toy.job(method, *LORA)
    toy.run(Serial(), job, rounds=1, save=tmp_path)
    unbroken, resumed = toy.run(Serial(), job), toy.run(Serial(), job, resume=tmp_path)
    assert toy.differences(resumed.state, unbroken.state) == []
    assert toy.differences(resumed.weights, unbroken.weights) == []


@pytest.mark.parametrize("flags", [HEAD, LORA], ids=lambda flags: flags[0])
def test_saved_models_are_complete_and_as_accurate_as_recorded(flags, tmp_path):
    run = saved_run(tmp_path / "run", "fedavg", *flags)
    record = load(run)
    with rng.scoped(0, "init", 0):
        start = build("small", toy.SHAPE, toy.CLASSES, toy.D).state_dict()
    for model in from_newest(run, lambda source: list(Saved(run, source, with_tests()).models())):
        accuracy, recorded = counted(model, record)
        assert accuracy == recorded
        tensors = model.model.state_dict()
        assert tensors.keys() == start.keys()
        same = {name for name in start if torch.equal(tensors[name], start[name])}
        changed = {name for name in start if name not in same}
        assert changed == {"head.weight", "head.bias"} | (
            {"body.9.weight"} if flags == LORA else set()
        )


def adapted(architecture="small", train=(), rank=2):
    """A model with LoRA, and the plain one that it began as."""
    with rng.scoped(0, "init", 0):
        plain = build(architecture, toy.SHAPE, toy.CLASSES, toy.D)
    with rng.scoped(0, "init", 0):
        model = build(architecture, toy.SHAPE, toy.CLASSES, toy.D)
        Finetuning(train, rank).restrict(model, None)
    return model.eval(), plain.eval()


def test_lora_starts_as_the_frozen_model_and_merged_weights_give_the_same_logits():
    x = torch.from_numpy(toy.blobs(9, rng.stream(1, "images"))[0]).float()
    model, plain = adapted("mlp")
    assert torch.equal(model(x), plain(x))
    with torch.no_grad():
        for value in model.parameters():
            value += 0.1
    assert not torch.allclose(model(x), plain(x))
    plain.load_state_dict(plain_state(model))
    assert torch.equal(model(x), plain(x))


def test_lora_reaches_the_matrices_of_attention_layers():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    Finetuning(("norm*",), 2).restrict(layer, None)
    names = {name for name, _ in layer.named_parameters()}
    assert {name.partition(".param")[0] for name in names if name.endswith(".a")} == {
        "self_attn",
        "self_attn.out_proj",
        "linear1",
        "linear2",
    }
    assert {n for n in names if not n.endswith((".a", ".b"))} == {
        f"norm{i}.{part}" for i in (1, 2) for part in ("weight", "bias")
    }
    x, direction = torch.rand(2, 3, 5, 8, generator=torch.Generator().manual_seed(1))
    (direction * layer(x)).sum().backward()  # the sum alone is the same after any normalisation
    grad = layer.self_attn.parametrizations.in_proj_weight[0].b.grad
    assert grad.shape == (24, 2) and grad.abs().sum() > 0
    assert plain_state(layer).keys() == before.keys()


def test_lora_reaches_the_linear_layers_of_gpt_2_which_hold_their_weights_transposed():
    prepare_torchvision()  # transformers imports it
    layer = pytest.importorskip("transformers.pytorch_utils").Conv1D(6, 4)  # 4 inputs
    model = torch.nn.Sequential(layer)
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    before = model(x)
    Finetuning(lora=2).restrict(model, None)
    lora = layer.parametrizations.weight[0]
    assert lora.a.shape == (2, 4) and lora.b.shape == (6, 2) and not lora.b.any()
    assert torch.equal(model(x), before)
    with torch.no_grad():
        lora.b += 0.1
    assert torch.allclose(model(x), before + x @ lora.a.T @ lora.b.T)
    assert plain_state(model)["0.weight"].shape == (4, 6)


def test_the_rank_that_a_refusal_names_is_accepted_and_above_one_side_of_a_matrix_is_no_refusal():
    model = torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.Linear(7, 2), torch.nn.Linear(2, 4))
    with pytest.raises(ConfigError, match="8: wide has a matrix of 4 x 2, .*to at most 4 "):
        Finetuning(lora=8).check(model, "wide")  # 4 x 2 is smaller than 7 x 3, which comes first
    Finetuning(lora=4).check(model, "wide")


def test_statistics_that_are_not_named_stay_and_are_used_as_they_are():
    model, plain = adapted(train=("body.1.weight", "body.1.bias", "head.*"), rank=0)
    x = torch.from_numpy(toy.blobs(9, rng.stream(1, "images"))[0]).float()
    model.train()
    assert not model.body[1].training and model.body[4].training
    model(x)
    assert torch.equal(model.body[1].running_mean, plain.body[1].running_mean)


REFUSED = {
    ("fml", *HEAD): "fml needs whole models",
    ("fesemma", *LORA): "fesemma needs whole models",
    ("heterofl", *HEAD, "--models.widths", "1,0.5"): "of one width",
    ("fedavg", "--models.train", "foot.*"): r"no parameter of small has a name like 'foot\.\*'",
    ("fedavg", "--models.lora", "300", "--models.mix", "mlp"): "64, .* at most 200",
    ("fedavg", "--models.mix", "cnn", "--models.lora", "2", "--models.train", "*"): "no linear or",
    ("fedrep", *HEAD): "models.train leaves nothing that fedrep exchanges",
    ("fedavg", "--models.weights", "none,none"): "2 entries, but models.mix 1",
    ("fedavg", "--models.weights", "gone.pt"): "gone.pt: there is no such file",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_impossible_values_are_refused_in_one_message(words):
    with pytest.raises(ConfigError, match=REFUSED[words]):
        toy.start(Serial(), toy.job(*words))


def test_a_run_warns_of_random_weights_that_stay_and_of_sizes_that_count_twice():
    assert odd_settings(toy.job("fedavg", *MLP)) == []
    (line,) = odd_settings(toy.job("fedavg", *MLP, *LORA))
    assert "models.lora = 2 without models.weights" in line
    choice = ("--selection.by", "power-of-choice")
    (line,) = odd_settings(toy.job("fedavg", *choice))
    assert "set algorithm.weighting = 'uniform'" in line
    assert odd_settings(toy.job("fedavg", *choice, "--algorithm.weighting", "uniform")) == []


def test_weights_of_a_file_are_where_all_clients_start(tmp_path):
    with rng.scoped(7, "other"):
        other = build("small", toy.SHAPE, toy.CLASSES, toy.D)
    torch.save(other.state_dict(), tmp_path / "w.pt")
    fed = toy.start(Serial(), toy.job("fedavg", "--models.weights", str(tmp_path / "w.pt"))).fed
    for k in (0, 3):
        for name, value in fed.initial(k=k).items():
            assert torch.equal(value, other.state_dict()[name])
    assert np.isfinite(fed.store.work("small"))


TINY = ("--models.mix", "clip-tiny")


def dual(name="clip-tiny", shape=toy.SHAPE, **options):
    with rng.scoped(0, "init", 0):
        return build(name, shape, toy.CLASSES, toy.D, **options).eval()


def images(n=9):
    return torch.from_numpy(toy.blobs(n, rng.stream(1, "images"))[0]).float() / 255


def test_both_cross_entropies_of_a_batch_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    y = torch.tensor([0, 0, 1])  # pairs [[2, 2, 0], [0, 0, 0], [0, 0, 1]]
    e = np.exp(1)
    rows = np.log(2 * e**2 + 1) - 2 + np.log(3) + np.log(2 + e) - 1
    columns = np.log(e**2 + 2) - 2 + np.log(e**2 + 2) - 0 + np.log(2 + e) - 1
    assert float(contrast_pairs(logits, y)) == pytest.approx((rows / 3 + columns / 3) / 2)


def test_an_adapter_of_zeros_is_the_dual_encoder_itself():
    plain, adapted_ = dual(), dual("clip-tiny~adapter")
    adapted_.body.load_state_dict(plain.body.state_dict())
    adapted_.head.load_state_dict(plain.head.state_dict())
    with torch.no_grad():
        for value in adapted_.adapter[2].parameters():
            value.zero_()
    z = plain.body(images())
    assert torch.allclose(adapted_.adapter(z), torch.full_like(z, 1 / toy.D))
    assert torch.allclose(z.norm(dim=1), torch.ones(len(z)))
    assert torch.allclose(adapted_(images()), plain(images()), atol=1e-5)


def test_the_head_of_a_dual_encoder_is_made_of_the_names_of_the_classes():
    heads = [dual(names=names).head for names in ((), "0123", "abcd")]
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
    lengths = heads[0].weight.norm(dim=1)
    assert torch.allclose(lengths, torch.full_like(lengths, 1 / 0.07)) and not heads[0].bias.any()
    assert not [name for name in dual().state_dict() if "text" in name]


@pytest.mark.parametrize("mix", [TINY, ("--models.mix", "small")], ids=lambda mix: mix[1])
def test_fedclip_sends_adapters_alone_and_leaves_all_else_as_it_was(mix):
    rounds = toy.start(Serial(), toy.job("fedclip", *mix, "--participation", "1"))
    fed, frozen = rounds.fed, rounds.fed.module(rounds.fed.architectures[0]).model
    before = {n: v.clone() for n, v in frozen.named_buffers()}
    start = rounds.state.clone()
    outcome = toy.outcome(rounds, [rounds.step()[0]])
    assert set(rounds.state) == {
        f"adapter.{i}.{part}" for i in (0, 2) for part in ("weight", "bias")
    }
    for way in ("down", "up"):
        assert set(outcome.column(way).ravel()) == {4 * 2 * (toy.D**2 + toy.D)}
    assert all(not torch.equal(rounds.state[n], start[n]) for n in start)
    assert {n.partition(".")[0] for n in before} == {"body", "head"}
    after = fed.store.skeleton(fed.architectures[0]).model
    for name, value in after.named_buffers():
        assert torch.equal(value, before[name]), name


def test_weights_of_a_file_are_those_of_body_and_head_with_any_additions_of_a_method(tmp_path):
    torch.save(dual("small").state_dict(), tmp_path / "small.pt")
    flags = ("--models.mix", "small", "--models.weights", str(tmp_path / "small.pt"), "--seed", "3")
    for method in ("fedclip", "heterossfl"):
        fed = toy.start(Serial(), toy.job(method, *flags)).fed
        model = fed.store.build(fed.architectures[0])
        assert torch.equal(model.head.weight, dual("small").head.weight)
        assert torch.equal(model.body[0].weight, dual("small").body[0].weight)


def test_a_folder_without_a_dual_encoder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no config.json"):
        dual(f"clip:{tmp_path}")
    with pytest.raises(ConfigError, match="rename the folder"):
        toy.job("fedclip", "--models.mix", "clip:~/b")
    with pytest.raises(ConfigError, match="its encoders are not cut"):
        dual("clip-tiny@0.5")


def test_a_dual_encoder_of_hugging_face_is_read_from_its_folder(tmp_path):
    pytest.importorskip("transformers")
    transformers = clip.library(str(tmp_path))
    text = {"vocab_size": 40, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "image_size": 16}
    both = {"num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config=text | both | {"eos_token_id": 1, "bos_token_id": 0},
        vision_config=vision | both | {"patch_size": 8},
        projection_dim=6,
    )
    torch.manual_seed(0)
    encoder = transformers.CLIPModel(config).eval()
    encoder.save_pretrained(tmp_path)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["<|startoftext|>", "<|endoftext|>", *(f"{c}</w>" for c in letters)]
    (tmp_path / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    files = (str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    transformers.CLIPTokenizer(*files).save_pretrained(tmp_path)
    name = f"clip:{tmp_path}"
    model = dual(name, names="abcd")
    x = images(2)
    large = torch.nn.functional.interpolate(x.expand(-1, 3, -1, -1), (16, 16), mode="bilinear")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        [f"a picture of a {c}" for c in "abcd"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        want = encoder(pixel_values=large, **tokens).logits_per_image
        assert torch.allclose(model(x), want, atol=1e-4)
    run = toy.run(Serial(), toy.job("fedclip", "--models.mix", name, "--rounds", "1"))
    assert {v for v in run.column("up").ravel() if v} == {4 * 2 * (6 * 6 + 6)}


@pytest.mark.parametrize("flags", [(), LORA], ids=["all", "lora"])
def test_a_run_is_not_resumed_with_other_initial_weights(tmp_path, flags):
    path, run = tmp_path / "w.pt", tmp_path / "run"

    def put(seed: int) -> None:
        with rng.scoped(seed, "other"):
            torch.save(build("small", toy.SHAPE, toy.CLASSES, toy.D).state_dict(), path)

    put(7)
    job = toy.job("fedavg", "--models.weights", str(path), *flags)
    toy.run(Serial(), job, rounds=1, save=run)
    put(8)
    with pytest.raises(CheckpointError, match=r"w.pt \(small\) is not the file that the run began"):
        toy.run(Serial(), job, resume=run)
    put(7)
    assert toy.run(Serial(), job, resume=run).rows


def table(path, columns=("age", "weight"), classes=("no", "yes"), words=("f", "m")):
    """Write rows with these columns and a label that depends on age and weight; return the path."""
    g = np.random.default_rng(3)
    rows = {"age": g.normal(50, 15, 120), "weight": g.normal(70, 9, 120)}
    rows["sex"] = [words[i % 2] for i in range(120)]
    label = [classes[int(a > w - 20)] for a, w in zip(rows["age"], rows["weight"], strict=True)]
    lines = zip(*(rows[name] for name in columns), label, strict=True)
    text = "\n".join(",".join(map(str, line)) for line in [(*columns, "label"), *lines])
    path.write_text(text + "\n")
    return str(path)


def from_model(tmp_path, data, **more):
    """Run on this table, beginning with the model of a run on another one."""
    job = {"models.mix": ["mlp"], "models.d": 8, "quiet": True, "data.partition": "iid"} | more
    return hpcfed.run(
        job,
        data=data,
        algorithm="fedavg",
        clients=2,
        rounds=1,
        overwrite=True,
        out=str(tmp_path / "run"),
    )


def exported(tmp_path, data):
    """The file of the common model of a run on this table."""
    models(Path(from_model(tmp_path, data).folder), out=tmp_path / "models", common=True)
    return str(tmp_path / "models" / "common.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"columns": ("weight", "age")}, "columns age, weight, in this order, and .* weight, age"),
        (
            {"columns": ("age", "sex", "weight")},
            "age, weight, in this order, and .* age, sex, weig",
        ),
    ],
)
def test_weights_of_a_model_of_other_columns_are_refused(tmp_path, change, words):
    weights = exported(tmp_path, table(tmp_path / "a.csv"))
    with pytest.raises(ConfigError, match=words):
        from_model(tmp_path, table(tmp_path / "b.csv", **change), **{"models.weights": [weights]})


def test_weights_of_a_model_of_other_categories_are_refused(tmp_path):
    columns = ("age", "sex")
    weights = exported(tmp_path, table(tmp_path / "a.csv", columns))
    other = table(tmp_path / "b.csv", columns, words=("f", "x"))
    with pytest.raises(
        ConfigError, match="categories f, m of column 'sex', .* these data have f, x"
    ):
        from_model(tmp_path, other, **{"models.weights": [weights]})


def test_a_head_of_classes_of_other_names_is_drawn_anew_and_the_run_says_so(tmp_path, capsys):
    weights = exported(tmp_path, table(tmp_path / "a.csv"))
    tensors = load_file(weights)
    for classes, same in ((("no", "yes"), True), (("healthy", "ill"), False)):
        name = "-".join(classes)
        data = table(tmp_path / f"{name}.csv", classes=classes)
        capsys.readouterr()
        from_model(tmp_path, data, **{"models.weights": [weights], "local.lr": 1e-12})
        assert ("the head of mlp is drawn anew" in capsys.readouterr().err) != same
        state = hpcfed.load_model(tmp_path / "run").state_dict()
        for tensor, value in tensors.items():
            equal = torch.allclose(state[tensor], value)
            assert equal == (same or ".body." in tensor), tensor


def test_weights_of_a_model_of_other_tokens_are_refused(tmp_path):
    def texts(name, words):
        rows = [f"{words[i % 2]} and {words[i % 3]},{'ab'[i % 2]}" for i in range(60)]
        (tmp_path / name).write_text("\n".join(["text,label", *rows]) + "\n")
        return str(tmp_path / name)

    how = {"columns.text": "text", "models.mix": ["lstm-1"]}
    models(
        Path(from_model(tmp_path, texts("a.csv", ["good", "bad", "old"]), **how).folder),
        out=tmp_path / "models",
        common=True,
    )
    how |= {"models.weights": [str(tmp_path / "models" / "common.safetensors")]}
    with pytest.raises(ConfigError, match="other tokens than those of these data"):
        from_model(tmp_path, texts("b.csv", ["low", "bad", "new"]), **how)
