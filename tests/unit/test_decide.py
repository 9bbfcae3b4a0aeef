"""Set-up: rank 0 decides, all ranks have the same world, and the same error."""

import threading
from pathlib import Path

import numpy as np
import pytest

from hpcfed.comm import Serial
from hpcfed.config.load import load as load_job
from hpcfed.core.errors import ConfigError, DataError, HpcfedError
from hpcfed.data import datasets
from hpcfed.engine import checks, decide
from hpcfed.engine.decide import world
from hpcfed.engine.world import from_codes, to_codes
from tests.contract import toy
from tests.threads import spmd

pytestmark = pytest.mark.quick
MLP = ("--models.mix", "mlp")


def test_rank_0_alone_checks_and_each_node_reads_the_data_once(monkeypatch: pytest.MonkeyPatch):
    check, load, calls = checks.check_views, datasets.load_for, []
    job = toy.job("fedavg", *MLP)
    monkeypatch.setattr(checks, "check_views", lambda *a: (calls.append("check"), check(*a)))
    monkeypatch.setattr(datasets, "load_for", lambda *a: (calls.append("read"), load(*a))[1])
    spmd(6, lambda comm: world(job, comm), nodes=2)
    assert sorted(calls) == ["check", "read", "read"]


def test_ranks_of_a_node_share_the_examples_and_all_ranks_have_the_same_world():
    job = toy.job("fedavg", *MLP, "--evaluate.validation", "0.2", "--data.wrong_labels", "0.5")
    first, second, other = spmd(3, lambda comm: world(job, comm), nodes=2)
    assert np.shares_memory(first.data.train.x, second.data.train.x) != np.shares_memory(
        first.data.train.x, other.data.train.x
    )
    alone = world(job, Serial())
    for ours in (first, second, other):
        assert toy.differences(ours.to_tree(), alone.to_tree()) == []
        assert ours.data.train.y.tolist() == alone.data.train.y.tolist()
    public = alone.data.train.y[alone.public]
    assert (alone.open.y != alone.data.train.y).any() and (
        alone.open.y[alone.public] == public
    ).all()


def test_a_job_that_cannot_be_run_is_refused_on_all_ranks_with_one_message():
    job = toy.job("fedavg", *MLP, "--evaluate.metrics", "c_index")

    def refused(comm) -> tuple[type, str]:
        with pytest.raises(HpcfedError) as error:
            world(job, comm)
        assert error.value.everywhere
        return type(error.value), str(error.value)

    errors = spmd(4, refused, nodes=2)
    assert len(set(errors)) == 1
    assert errors[0][0] is ConfigError and not errors[0][1].startswith("rank ")


def test_a_node_that_cannot_read_the_data_is_named_on_all_ranks(monkeypatch: pytest.MonkeyPatch):
    job, read, here = toy.job("fedavg", *MLP), decide.read, threading.local()

    def read_on_one_node(job):
        if here.rank == 2:
            raise DataError("data.npz: no such file")
        return read(job)

    def refused(comm) -> str:
        here.rank = comm.rank
        with pytest.raises(DataError) as error:
            world(job, comm)
        return str(error.value)

    monkeypatch.setattr(decide, "read", read_on_one_node)
    assert spmd(4, refused, nodes=2) == 4 * ["rank 2: data.npz: no such file"]


@pytest.mark.parametrize("labels", [("a", "b", "a"), (("x", "y"), ("x",), ("x", "y")), 3 * ("a",)])
def test_labels_of_clients_are_sent_once_and_shared(labels):
    codes, numbers = to_codes(labels)
    again = from_codes((codes, numbers), len(labels))
    assert again == labels and again[0] is again[2]
    assert numbers.nbytes == 4 * (len(labels) if len({*labels}) > 1 else 1)


def test_errors_are_shared_among_ranks_at_ten_places_at_most():
    """Each is a collective: what can be checked is checked in `decide`, before any of them."""
    package = Path(decide.__file__).parents[1]
    texts = [path.read_text() for path in package.rglob("*.py")]
    assert sum(text.count("on_all_ranks(") for text in texts) - 1 <= 10  # less its definition


@pytest.mark.parametrize(
    "flags, what",
    [
        (("--algorithm.name", "fedclassavg"), "local.augment = 'simclr'"),
        (("--algorithm.name", "fedavg", "--data.shift.hue_groups", "2"), "data.shift.hue_groups"),
    ],
)
def test_colours_of_numbers_that_are_no_pixels_are_not_changed(tmp_path, flags, what):
    x = np.random.default_rng(0).normal(128, 40, (40, 3, 8, 8)).clip(0, 255)
    for name, images in (("wide", x), ("unit", x / 255), ("bytes", x.astype(np.uint8))):
        arrays = {"x_train": images, "y_train": np.arange(40) % 2}
        np.savez(tmp_path / f"{name}.npz", **arrays)
        job = load_job(
            [*flags, *MLP, "--data.name", str(tmp_path / f"{name}.npz"), "--clients", "2"],
            environ={},
        )
        if name != "wide":
            world(job, Serial())
            continue
        with pytest.raises(ConfigError, match=rf"pixels lie in [\d.e-]+..255, and {what} changes"):
            world(job, Serial())


def test_public_examples_of_a_table_with_other_categories_are_refused(tmp_path):
    for name, wards in (("ours", "ABC"), ("theirs", "BCD")):
        rows = [f"{i},{wards[i % 3]},{'yes' if i % 2 else 'no'}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,ward,sick", *rows]) + "\n")
    flags = ("--algorithm.name", "fedmd", "--clients", "2", "--data.public", "10", *MLP)
    flags += ("--columns.label", "sick", "--data.name", str(tmp_path / "ours.csv"))
    other = ("--data.public_source", str(tmp_path / "theirs.csv"))
    with pytest.raises(DataError, match="theirs has columns of other names or categories than"):
        world(load_job([*flags, *other], environ={}), Serial())


def with_public(folder: Path, method: str, ours: str, theirs: str, *flags: str):
    """A world whose clients have one table, and whose public examples are those of another."""
    (folder / "ours.csv").write_text(ours)
    (folder / "theirs.csv").write_text(theirs)
    words = ["--algorithm.name", method, "--clients", "2", *MLP, *flags]
    words += ["--data.name", str(folder / "ours.csv"), "--data.partition", "iid"]
    words += ["--data.public", "10", "--data.public_source", str(folder / "theirs.csv")]
    return world(load_job(words, environ={}), Serial())


def test_classes_of_public_examples_are_the_clients_classes_of_the_same_names(tmp_path):
    ours = "a,label\n" + "".join(f"{i},{'xyz'[i % 3]}\n" for i in range(60))
    for kinds, numbers in (("yz", {1, 2}), ("zw", {2, 3}), ("pq", {0, 1})):
        theirs = "a,label\n" + "".join(f"{i},{kinds[i % 2]}\n" for i in range(60))
        decided = with_public(tmp_path, "feddf", ours, theirs)
        assert set(decided.open.y.tolist()) == numbers, kinds


def test_targets_of_public_examples_have_the_clients_unit(tmp_path):
    ours, theirs = (
        "a,y\n" + "".join(f"{i},{i + 0.5}\n" for i in range(start, start + 60))
        for start in (0, 1000)
    )
    flags = ("--columns.target", "y")
    decided = with_public(tmp_path, "fedavg", ours, theirs, *flags)
    y = decided.open.y * decided.data.task.std[0] + decided.data.task.mean[0]
    assert y.min() > 1000 and np.allclose(y % 1, 0.5, atol=1e-3)


def test_public_examples_are_of_other_data_than_the_clients():
    with pytest.raises(ConfigError, match="public_source = 'digits' is the clients' own data set"):
        load_job(["--data.public", "9", "--data.public_source", "digits"], environ={})
    with pytest.raises(ConfigError, match=r"data.public_source = .* has no effect"):
        load_job(["--data.public_source", "others.npz"], environ={})
