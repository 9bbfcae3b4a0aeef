"""Data of several modalities: files, sets of clients, encoders and fusion by hand; data sets that
have them.
"""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import hpcfed
from hpcfed.clients.client import Shard, concat_shards
from hpcfed.config.sections import Modalities
from hpcfed.core.architecture import Architecture
from hpcfed.core.errors import ConfigError, DamagedError, DataError
from hpcfed.core.inputs import prepare
from hpcfed.core.rng import scoped
from hpcfed.core.shapes import Modality, Shapes, read_shape, write_shape
from hpcfed.data import modalities, records, utd_mhad
from hpcfed.data.dataset import Split, from_arrays, several, to_arrays
from hpcfed.data.datasets import load
from hpcfed.models import build
from hpcfed.models.cost import work
from hpcfed.models.files import check_about, flat
from hpcfed.results.trained.export import models
from hpcfed.results.trained.from_checkpoint import Saved, from_newest
from hpcfed.results.trained.probe import make
from tests.contract.models import saved_run
from tests.contract.test_methods_on_modalities import folder, write
from tests.unit.test_datasets import shared

SENSORS = Shapes([Modality("acc", (3, 128)), Modality("gyro", (3, 128))])
MIXED = Shapes([Modality("age", (1,)), Modality("seen", (1, 8, 8)), Modality("said", (9,), 5)])


def make_model(name: str, shape: Shapes = SENSORS, classes: int = 6, d: int = 64):
    with scoped(0, "init"):
        return build(name, shape, classes, d).eval()


def batch(shape: Shapes, n: int = 3) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return {
        name: torch.randint(1, tokens, (n, *s), generator=g)
        if tokens
        else torch.randn(n, *s, generator=g)
        for name, s, tokens in shape
    }


def test_attention_on_two_sensors_has_the_parameters_of_fedmultimodal():
    """FedMultimodal's model for UCI-HAR: 420,684."""
    assert sum(p.numel() for p in make_model("attention").parameters()) == 420_684


def test_tensors_are_named_by_modality_and_a_part_of_the_modalities_has_no_others():
    names = set(make_model("concat(gyro=gru)").state_dict())
    assert "body.encoders.acc.conv.0.weight" in names and "head.weight" in names
    assert {n.split(".")[3] for n in names if n.startswith("body.encoders.gyro.")} == {"gru"}
    part = make_model("concat(gyro=gru)[acc]").state_dict()
    assert not any("gyro" in name for name in part)
    assert part["body.out.weight"].shape == (64, 128)


@pytest.mark.parametrize("name", ["concat", "mean", "attention"])
def test_a_batch_without_a_modality_is_fused_from_the_others(name: str):
    model, x = make_model(name, MIXED), batch(MIXED)
    assert model(x).shape == (3, 6)
    some = {"seen": x["seen"]}
    assert torch.equal(model(some), model(dict(reversed([*some.items(), ("smell", x["age"])]))))
    if name == "mean":  # of one feature, that one
        h = model.body.encoders.seen(x["seen"]).mean()
        assert torch.equal(model.body(some), model.body.out(h).relu())
    if name == "concat":  # zeros in the place of the others
        h = model.body.encoders.seen(x["seen"]).mean()
        wide = torch.cat([torch.zeros(3, 128), h, torch.zeros(3, 128)], 1)
        assert torch.equal(model.body(some), model.body.out(wide).relu())


def test_padding_of_tokens_is_not_averaged_and_gets_no_attention():
    short = torch.tensor([[1, 2, 3, 0, 0, 0, 0, 0, 0]])
    for name in ("mean(said=gru)", "attention(said=gru)"):
        model = make_model(name, MIXED.only(["said"]))
        shorter = model({"said": short[:, :4]})
        torch.testing.assert_close(model({"said": short}), shorter)
        assert model({"said": torch.zeros_like(short)}).isfinite().all()


def test_the_work_of_a_recurrent_encoder_is_counted_for_each_step():
    one = Shapes([Modality("acc", (3, 10))])
    adds = work("mean(acc=gru)", one, 2, 8).multiply_adds
    assert adds == 10 * 3 * 128 * (3 + 128) + 128 * 8 + 8 * 2


def test_each_modality_is_normalised_by_its_channels_and_tokens_are_left():
    x = {"a": torch.tensor([[1.0, 5.0]]), "b": torch.full((1, 1, 2), 4.0), "c": torch.ones(1, 3)}
    examples = prepare(x, {"a": (1, 3), "b": (2,), "c": ()}, {"a": (1, 2), "b": (4,), "c": ()})
    assert examples["a"].tolist() == [[0, 1]] and examples["b"].tolist() == [[[0.5, 0.5]]]
    assert examples["c"].dtype == torch.int64 and x["a"].tolist() == [[1, 5]]


def test_missing_modalities_do_not_count_in_moments_and_are_zero_after_normalisation():
    x = {"a": np.array([[1.0], [3.0], [99.0]], np.float32), "b": np.ones((3, 2), np.int32)}
    present = {"a": np.array([True, True, False]), "b": np.array([False, True, True])}
    split = Split(x, np.array([0, 1, 0]), None, present)
    data = several("toy", split, split.take(np.array([2])), "01", {"b": 2})
    assert (data.mean["a"], data.std["a"]) == ((2.0,), (1.0,))
    assert data.train.x["a"].ravel().tolist() == [1, 3, 2] and data.test.x["a"].tolist() == [[2]]
    assert data.train.x["b"].tolist() == [[0, 0], [1, 1], [1, 1]]
    assert x["a"][2] == 99  # the given arrays stay


def test_a_file_becomes_a_data_set_and_survives_being_shared(tmp_path: Path):
    data = load(str(write(tmp_path / "my.h5")), tmp_path)
    assert data.shape == Shapes(
        [Modality("motion", (2, 8)), Modality("note", (5,), 7), Modality("table", (3,))]
    )
    assert (data.task.name, data.own_tests, data.text) == ("binary", True, True)
    again = from_arrays(to_arrays(data))
    assert again.shape == data.shape and (again.mean, again.task) == (data.mean, data.task)
    for name, x in data.train.x.items():
        assert (again.train.x[name] == x).all() and np.isfinite(x).all()
    assert (again.test.present["table"] == data.test.present["table"]).all()
    part = data.only(["table", "motion"])
    assert part.modalities == ("motion", "table") and not part.text
    assert read_shape(write_shape(data.shape)) == data.shape and read_shape([1, 2]) == (1, 2)


def test_the_same_arrays_in_npz_are_the_same_data_set(tmp_path: Path):
    stored = load(str(write(tmp_path / "my.h5")), tmp_path)
    arrays = {"vocabulary/note": 7, "own_tests": 1}
    with h5py.File(tmp_path / "my.h5") as file:
        for part in ("train", "test"):
            for kind in ("x", "present"):
                for name in file[f"{part}/{kind}"]:
                    arrays[f"{kind}_{part}/{name}"] = file[f"{part}/{kind}/{name}"][()]
            arrays[f"y_{part}"] = file[f"{part}/labels"][()]
            arrays[f"users_{part}"] = file[f"{part}/users"][()]
    np.savez(tmp_path / "my.npz", **arrays)
    data = load(str(tmp_path / "my.npz"), tmp_path)
    assert (data.shape, data.mean, data.own_tests) == (stored.shape, stored.mean, True)
    for part, other in ((data.train, stored.train), (data.test, stored.test)):
        assert all((x == other.x[name]).all() for name, x in part.x.items())
        assert (part.present["table"] == other.present["table"]).all()
        assert (part.users == other.users).all()
    np.savez(tmp_path / "my.npz", **arrays, **{"present_test/sound": np.ones(3)})
    with pytest.raises(DataError, match="present_test/sound: there is no x_test/sound"):
        load(str(tmp_path / "my.npz"), tmp_path)


def edit(path: Path, name: str, value: object = None) -> None:
    with h5py.File(path, "a") as file:
        del file[name]
        if value is not None:
            file[name] = value


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("train/x/motion", np.zeros((72, 3, 8)), "test/x/motion is float32 .2, 8. an example"),
        ("test/x/table", None, "test/present/table: there is no test/x/table"),
        ("train/x/table", np.zeros((70, 3)), "train/x/table: shape .70, 3., but there are 72"),
        ("train/x/table", np.full((72, 3), np.nan), "train/x/table.* numbers must be finite"),
        ("train/x/table", np.zeros(72), "is not a modality; store numbers"),
        ("train/present/table", np.full(72, 2), "an example has the modality, 1, or not, 0"),
        ("train/present/table", np.ones(3, int), "there are 72 examples; store 0 or 1 for each"),
        ("train/labels", None, "has no train/labels or train/y"),
        ("train/users", None, "attribute own_tests is 1"),
        (
            "train/labels",
            np.arange(72) % 3,
            "task is 'binary', which has 2 classes, but there are 3",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused(name: str, value: object, message: str, tmp_path: Path):
    path = write(tmp_path / "my.h5")
    edit(path, name, value)
    with pytest.raises(DataError, match=message):
        load(str(path), tmp_path)


def test_sets_are_drawn_listed_or_natural_and_no_client_has_none():
    names, natural = ("a", "b", "c"), lambda k: ("b",)

    def own(n: int = 400, **fields: object) -> tuple:
        return modalities.assign(names, Modalities(**fields), n, 0, natural).clients

    assert set(own()) == {names} and set(own(clients="natural")) == {("b",)}
    listed_sets = own(3, clients="listed", sets=("c+a", "b"))
    assert listed_sets == (("a", "c"), ("b",), ("a", "c"))
    drawn_sets = own(clients="drawn", rate=0.3)
    assert min(map(len, drawn_sets)) == 1 and 0.3 < np.mean(["a" in s for s in drawn_sets]) < 0.5
    shares = own(clients="drawn", sets=("a", "b+c"), shares=(3, 1))
    assert (
        set(shares) == {("a",), ("b", "c")} and 0.68 < np.mean([s == ("a",) for s in shares]) < 0.82
    )
    assert own(9, clients="drawn", rate=0.3) == drawn_sets[:9]  # each client's draw is its own


def test_missing_modalities_are_drawn_beside_the_sets():
    assigned = modalities.assign(("a", "b"), Modalities(missing=0.4), 400, 0, lambda k: ())
    assert set(assigned.clients) == {("a", "b")} and min(map(len, assigned.train)) == 1
    assert 0.55 < np.mean(["b" in names for names in assigned.train]) < 0.75  # 0.6 + 0.16 / 2


def test_trained_models_of_a_run_predict_the_recorded_accuracy_also_from_a_file(tmp_path: Path):
    senses = ("--data.name", str(folder() / "senses.h5"), "--data.partition", "natural")
    flags = ("--modalities.clients", "natural", "--modalities.encoders", "own", "--clients", "6")
    mix = ("--models.mix", "concat(motion=conv1d)")
    run = saved_run(tmp_path / "run", "lgfedavg", *senses, *flags, *mix, rounds=1)
    record, data = hpcfed.load(run), load(str(folder() / "senses.h5"), tmp_path)
    accuracy = record.column("clients/accuracy")[0]
    for model in from_newest(run, lambda source: list(Saved(run, source).models())):
        k = model.about.client
        rows = data.test.users == k
        x = {name: torch.from_numpy(v[rows]) for name, v in data.test.x.items()}
        score = (model(x).argmax(1).numpy() == data.test.y[rows]).mean()
        assert score == accuracy[k]
    models(run, out=tmp_path / "out")
    again = hpcfed.load_model(tmp_path / "out/client-0005.safetensors")
    assert torch.equal(again(x), model(x)) and again.about == model.about
    assert make(run, examples=5).predictions.shape == (6, 5)
    wrong = replace(model.about, mean={"motion": (0.0,)})
    with pytest.raises(DamagedError, match="means are not of the modalities"):
        check_about(wrong)
    with pytest.raises(DamagedError, match="shape holds"):
        list(flat({"shape": [{"name": "a"}]}))


def test_health_records_have_the_numbers_of_fedcovids_tables():
    data = records.load("health-records")
    y = [np.bincount(split.y).tolist() for split in (data.train, data.test)]
    assert y == [[4127, 879], [1302, 218]] and data.task.name == "binary" and data.own_tests
    person = np.concatenate([data.train.x["person"], data.test.x["person"]]).sum(0)
    assert person.tolist() == [4765, 1761, 3355, 2159, 1012]
    sizes = np.bincount(np.concatenate([data.train.users, data.test.users]))
    assert len(sizes) == 29 and sizes.min() >= 20 and np.sort(sizes)[-10:].sum() > 4000
    visits = data.train.x["visits"]
    assert data.shape[2] == Modality("visits", (50,), 804) and 800 <= visits.max() <= 803
    assert (visits[:, -3:] > 0).all() and (visits[:, 0] == 0).mean() > 0.5
    assert set(np.unique(data.test.users)) <= set(np.unique(data.train.users))


def test_utd_mhad_is_eight_people_with_three_sensors_and_tests_of_their_own():
    data = utd_mhad.load("utd-mhad", shared("utd_mhad.h5").parent)
    assert data.shape == Shapes(
        Modality(name, shape)
        for name, shape in (
            ("accelerometer", (3, 128)),
            ("gyroscope", (3, 128)),
            ("skeleton", (60, 48)),
        )
    )
    assert (len(data.train.y), len(data.test.y), len(data.classes)) == (648, 213, 27)
    assert (
        np.unique(data.train.users).tolist()
        == list(range(1, 9))
        == np.unique(data.test.users).tolist()
    )
    with h5py.File(shared("utd_mhad.h5")) as file:
        values = file["train/inertial"][0]
    assert (data.train.x["gyroscope"][0] == values[:, 3:].T).all()


def test_utd_mhad_is_read_from_the_authors_files_and_brought_to_one_length(tmp_path: Path):
    from scipy.io import savemat

    for folder_, name, key, shape in (
        ("Inertial", "inertial", "d_iner", (5, 6)),
        ("Skeleton", "skeleton", "d_skel", (20, 3, 7)),
    ):
        (tmp_path / "UTD-MHAD" / folder_).mkdir(parents=True)
        for trial in (1, 4):
            path = tmp_path / "UTD-MHAD" / folder_ / f"a2_s3_t{trial}_{name}.mat"
            savemat(path, {key: np.arange(np.prod(shape), dtype=float).reshape(shape)})
    data = utd_mhad.load("utd-mhad", tmp_path)
    assert (data.train.y.tolist(), data.test.users.tolist()) == ([1], [3])
    acc = data.train.x["accelerometer"][0, 0]
    assert acc[0] == 0 and acc[-1] == 24 and np.allclose(np.diff(acc), 24 / 127, atol=1e-4)
    bone = data.train.x["skeleton"][0, 4]  # joint 1, axis 1
    assert bone[0] == 28 and bone[-1] == 34
    (tmp_path / "UTD-MHAD/Skeleton/a2_s3_t1_skeleton.mat").write_bytes(b"no")
    with pytest.raises(DataError, match="a2_s3_t1_skeleton.mat: cannot be read"):
        utd_mhad.load("utd-mhad", tmp_path)


def test_a_shard_returns_only_its_modalities_and_shards_with_the_same_ones_are_joined():
    x = {"a": np.arange(6.0).reshape(6, 1), "b": -np.arange(12.0).reshape(6, 2)}
    y, cpu = np.arange(6) % 2, torch.device("cpu")
    one, other = (Shard(x, y, np.array(rows), cpu, ["b"]) for rows in ([1, 3], [4]))
    assert one.modalities == ("b",) and one.values == 2
    inputs, labels = one.batch(np.array([1, 0]))
    assert inputs["b"].tolist() == [[-6, -7], [-2, -3]] and labels.tolist() == [1, 1]
    assert one.resident["b"].tolist() == [[-2, -3], [-6, -7]]
    both = concat_shards([one, other])
    assert both.x["b"] is x["b"] and both.rows.tolist() == [1, 3, 4]
    copied = Shard({"b": x["b"].copy()}, y, np.array([0]), cpu)
    joined = concat_shards([one, copied])
    assert joined.x["b"].tolist() == [[-2, -3], [-6, -7], [0, -1]]
    assert joined.rows.tolist() == [0, 1, 2] and joined.labels.tolist() == [1, 1, 0]


def test_a_models_name_lists_the_modalities_of_its_encoders():
    parse = Architecture.parse
    assert str(parse("concat(a=gru)").only(("a", "b"))) == "concat(a=gru)[a&b]"
    assert str(parse("concat[a&b]+mean").only(("b",))) == "concat[b]+mean"
    assert str(parse("concat(a=gru)[a&b]+mean").only(())) == "concat(a=gru)+mean"


def test_missing_data_list_the_expected_files_and_folder(tmp_path: Path):
    with pytest.raises(DataError, match="utd-mhad: not found in .*\n.*utd_mhad.h5"):
        load("utd-mhad", tmp_path)


def test_a_modality_may_not_have_the_name_of_a_method_of_torch():
    with pytest.raises(ConfigError, match="a modality cannot be called 'half'"):
        make_model("concat", Shapes([Modality("half", (3,))]))
