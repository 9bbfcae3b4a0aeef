"""Rounds and checkpoints: what is recorded, who is evaluated with which model, what a checkpoint
holds.
"""

import subprocess
import traceback
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from hpcfed.algorithms.base import Method
from hpcfed.comm import Serial
from hpcfed.core.errors import CheckpointError, ConfigError
from hpcfed.core.params import Params
from hpcfed.core.payload import Tally
from hpcfed.engine import describe
from hpcfed.engine.decide import assign, world
from hpcfed.engine.fault_tolerance import snapshot
from hpcfed.engine.fault_tolerance.resume import restore
from hpcfed.engine.round_record import cells
from hpcfed.engine.rounds import Rounds
from hpcfed.storage import checkpoint
from hpcfed.storage.columns import PHASES
from hpcfed.training.evaluate import NONE, score
from tests import saving
from tests.contract import toy
from tests.threads import spmd


def started(method: str = "fedavg", *flags: str, comm=None) -> Rounds:
    return toy.start(comm or Serial(), toy.job(method, "--models.mix", "mlp", *flags))


def test_the_commit_is_that_of_hpcfeds_own_checkout_or_none(tmp_path, monkeypatch):
    """A virtual environment lies below the checkout of a user's project."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b.c"]
    installed = tmp_path / "venv" / "describe.py"
    installed.parent.mkdir()
    installed.touch()
    (tmp_path / "own.py").touch()
    for words in (["init", "-q"], ["add", "own.py"], ["commit", "-qm", "own"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(describe, "__file__", str(installed))
    find_commit = describe.commit.__wrapped__  # a process asks once
    assert find_commit() == ""
    subprocess.run([*git, "add", "venv"], check=True)
    assert len(find_commit()) == 41  # changed since


def test_the_header_says_whether_clients_receive_a_complete_model():
    for method, complete in (("fedavg", True), ("local", False), ("fedper", False)):
        rounds = started(method)
        header = describe.header(rounds.fed.job, world(rounds.fed.job, Serial()), rounds)
        assert header["receives_model"] == complete, method


@pytest.mark.parametrize("engine", ["stacked", "traced"])
def test_the_header_says_which_engine_trains_if_its_bits_are_its_own(engine):
    rounds = started("fedavg", "--training.engine", engine)
    header = describe.header(rounds.fed.job, world(rounds.fed.job, Serial()), rounds)
    assert header["engine"] == ("stacked" if engine == "stacked" else "eager, traced or graphed")


def test_a_row_holds_every_column_of_clients_ranks_and_round():
    row, raised = started().step(lambda: {"stop": False})
    assert raised == {"stop": False}
    assert {name.split("/")[0] for name in row} == {"clients", "ranks", "rounds"}
    assert all(len(row[f"ranks/{phase}"]) == 1 for phase in PHASES)
    assert all(len(column) == 6 for name, column in row.items() if name.startswith("clients/"))
    assert row["clients/down"].dtype == row["clients/up"].dtype == np.int64


def test_a_flag_of_one_rank_is_raised_on_all():
    def step(comm):
        return started(comm=comm).step(lambda: {"stop": comm.rank == 1, "save": False})[1]

    assert spmd(3, step) == [{"stop": True, "save": False}] * 3


def test_a_tally_becomes_the_mean_loss_and_its_counts():
    assert cells(Tally(loss=6.0, examples=4, epochs=2.0, seconds=0.5, down=3, up=7)) == (
        1.5,
        4,
        2.0,
        0.5,
        3,
        7,
        0,
    )
    assert np.isnan(cells(Tally())[0])


def test_before_is_the_received_model_and_after_the_clients_own():
    rounds = started("fedavg", "--participation", "1")
    old = rounds.state.clone()
    row, _ = rounds.step()
    fed = rounds.fed
    for k, client in list(fed.clients.items())[:5]:
        client.load(old)
        assert row["clients/loss_before"][k] == score(fed, client, client.model).loss
        client.load(rounds.state)
        assert row["clients/loss"][k] != score(fed, client, client.model).loss


def test_a_rank_scores_its_cohort_before_it_waits_for_the_sum(monkeypatch):
    order, rounds = [], started()
    monkeypatch.setattr("hpcfed.engine.evaluation.score", lambda *_: order.append("score") or NONE)
    monkeypatch.setattr(
        rounds.fed.comm, "sum", lambda *_: order.append("sum") or rounds.fed.comm.barrier()
    )
    monkeypatch.setattr("hpcfed.core.averaging.Quotients.mean", lambda self: self.keep)
    rounds.step()
    before = len(rounds.evaluation.cohort)  # the models that they received
    assert order[before : 2 * before + 1] == ["score"] * before + ["sum"]


def test_a_client_that_keeps_nothing_and_did_not_train_is_scored_with_the_new_global_model():
    rounds = started("fedavg")
    row, _ = rounds.step()
    k = int(np.flatnonzero(~row["clients/cohort"][:5])[0])
    rounds.fed.clients[k].load(rounds.state)
    assert (
        row["clients/loss"][k]
        == score(rounds.fed, rounds.fed.clients[k], rounds.fed.clients[k].model).loss
    )
    assert np.isnan(row["clients/loss_before"][k])


def test_a_client_that_keeps_its_model_keeps_its_score_until_it_trains():
    rounds = started("local")
    rows = [rounds.step()[0] for _ in range(2)]
    rested = ~rows[1]["clients/cohort"]
    assert toy.differences(rows[0]["clients/loss"][rested], rows[1]["clients/loss"][rested]) == []


def test_a_score_that_was_not_due_is_caught_up_later():
    rounds = started("local", "--evaluate.every", "2", "--participation", "0.3")
    first, second = (rounds.step()[0] for _ in range(2))
    assert np.isnan(first["clients/loss"]).all() and np.isfinite(second["clients/loss"][:5]).all()
    assert not rounds.evaluation.stale[:5].any()


def test_from_the_step_of_a_round_to_the_loss_there_are_nine_frames_in_five_files(monkeypatch):
    stacks, loss = [], Method.loss

    def noted(self, *args):
        stacks.append(traceback.extract_stack()[:-1])
        return loss(self, *args)

    monkeypatch.setattr(Method, "loss", noted)
    started("fedavg", "--training.engine", "eager").step()
    names = [frame.name for frame in stacks[0]]
    frames = stacks[0][names.index("step") :]
    assert len(frames) + 1 == 9  # the loss itself is one, in the file of the method's round
    assert len({frame.filename for frame in frames}) == 5


def test_the_last_round_is_always_evaluated():
    rounds = started("local", "--evaluate.every", "1000")
    rows = [rounds.step()[0] for _ in range(3)]
    assert [np.isfinite(row["clients/loss"][:5]).all() for row in rows] == [False, False, True]


def test_a_client_without_test_examples_has_no_score():
    fed = started().fed
    assert (
        toy.differences(tuple(score(fed, fed.clients[5], fed.clients[5].model)), tuple(NONE)) == []
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_global_model_is_measured_on_the_whole_test_split(ranks: int):
    def common(comm):
        rounds = started("fedavg", "--evaluate.common", "true", comm=comm)
        return rounds.step()[0]["rounds/accuracy_common"] * 32

    right = spmd(ranks, common)
    assert right == [right[0]] * ranks and right[0] == round(right[0]) == round(common(Serial()))


def test_models_that_clients_keep_a_part_of_have_no_common_accuracy():
    assert np.isnan(
        started("fedclassavg", "--evaluate.common", "true").step()[0]["rounds/accuracy_common"]
    )


def test_clients_that_receive_everything_hold_no_weights_between_rounds():
    rounds = started("fedavg")
    rounds.step()
    assert rounds.fed.store.stateless and not list(rounds.fed.store) and not rounds.fed.store.active


def test_clients_are_moved_only_if_it_saves_time():
    def moved(comm, seconds):
        rounds = started("local", comm=comm)
        ids = np.flatnonzero(np.isfinite(seconds))  # of the clients that have trained
        took, sizes = np.array(seconds, dtype=float)[ids], np.array(toy.SIZES)[ids]
        rounds.balance.measure(ids, {"seconds": took, "examples": sizes})
        return rounds.balance.rebalance(), rounds.fed.placement.ranks, sorted(rounds.fed.clients)

    placed = spmd(2, lambda comm: moved(comm, toy.SIZES))
    assert [count for count, *_ in placed] == [0, 0]  # as estimated
    count, placement, _ = spmd(2, lambda comm: moved(comm, (32, 1, 1, 1, 1, 1)))[0]
    assert count > 0 and placement.count(placement[0]) == 1
    # a client that has not trained costs what others of its architecture do
    assert spmd(2, lambda comm: moved(comm, (np.nan, *toy.SIZES[1:])))[0][0] == 0
    assert spmd(2, lambda comm: moved(comm, (32, 1, 1, 1, 1, np.nan)))[0][0] > 0
    nobody = [np.nan] * 6
    assert spmd(2, lambda comm: moved(comm, nobody))[0][0] == 0


@pytest.mark.parametrize(
    ("method", "even"), [("fedavg", True), ("scaffold", True), ("fedrep", False)]
)
def test_a_cohort_that_holds_no_weights_is_dealt_out_evenly(method: str, even: bool):
    flags = (
        "--local.optimiser",
        "sgd",
        "--data.partition",
        "iid",
        "--clients",
        "12",
        "--participation",
        "0.5",
    )

    def loads(comm):
        rounds = started(method, *flags, comm=comm)
        return [len(rounds.evaluation.cohort) for _ in range(6) if rounds.step()]

    loads_by_rank = np.array(spmd(2, loads))  # [ranks, rounds]
    assert (loads_by_rank.sum(0) == 6).all() and (loads_by_rank == 3).all() == even


def assigned(*flags: str) -> tuple[str, ...]:
    return assign(toy.job("local", "--models.mix", *flags), toy.SHAPE, toy.CLASSES)


def test_architectures_are_dealt_out_drawn_or_listed():
    assert assigned("mlp,cnn") == ("mlp", "cnn") * 3
    mix = assigned("mlp,cnn", "--models.assign", "random")
    assert mix == assigned("mlp,cnn", "--models.assign", "random")
    assert set(mix) == {"mlp", "cnn"}
    names = "mlp,mlp,cnn,cnn,mlp,cnn"
    assert assigned(names, "--models.assign", "listed") == tuple(names.split(","))


def test_the_world_is_the_same_on_all_ranks_and_costs_grow_with_examples():
    job = toy.job("local", "--models.mix", "mlp")
    worlds = spmd(3, lambda comm: world(job, comm))
    for other in worlds[1:]:
        assert (
            toy.differences([other.partition, other.costs], [worlds[0].partition, worlds[0].costs])
            == []
        )
    assert np.allclose(np.array(worlds[0].costs) / worlds[0].costs[0], toy.SIZES)


def test_a_model_that_is_too_large_for_the_images_is_refused_on_all_ranks():
    job = toy.job("local", "--models.mix", "mlp,googlenet")
    with pytest.raises(ConfigError, match="googlenet takes images") as refusal:
        spmd(2, lambda comm: world(job, comm))
    assert refusal.value.everywhere


def test_a_checkpoint_of_another_job_is_refused(tmp_path):
    rounds = started()
    rounds.step()
    saving.save(rounds, tmp_path)
    with pytest.raises(
        CheckpointError, match=r"local.lr: 0.1 here, 0.005 in the checkpoint"
    ) as refusal:
        restore(started("fedavg", "--local.lr", "0.1"), tmp_path)
    assert refusal.value.everywhere


def test_a_checkpoint_holds_state_scores_and_every_client_and_the_older_ones_go(tmp_path):
    rounds = started("local", "--checkpoint.keep", "2")
    for _ in range(3):
        rounds.step()
        saving.save(rounds, tmp_path)
    with checkpoint.open_checkpoint(tmp_path) as file:
        assert file.rounds == 3
        assert file.names() == [
            "state",
            "scores",
            "time",
            *(f"clients/{k}" for k in rounds.fed.store),
        ]
        assert [*rounds.fed.store] == np.flatnonzero(
            ~np.isnan(rounds.balance.seconds)
        ).tolist()  # who was in a cohort
        assert torch.equal(file.get("clients/4")["weights"], rounds.fed.store.flat(4))
    files = sorted((tmp_path / "checkpoints").glob("*.h5"))
    assert [path.name for path in files] == ["round-000002.h5", "round-000003.h5"]
    assert "round-000003.h5" in rounds.fed.warnings.last_checkpoint


def test_a_restored_run_knows_scores_costs_and_clients_to_be_scored(tmp_path):
    rounds, again = (started("local", "--evaluate.every", "2") for _ in range(2))
    for _ in range(3):
        rounds.step()
    rounds.evaluation.scores[0], rounds.evaluation.stale[0] = (0.25, 1.5, 2), True
    saving.save(rounds, tmp_path)
    restore(again, tmp_path)
    assert again.t == rounds.t
    for flags in (
        lambda run: run.evaluation.scores,
        lambda run: run.evaluation.stale,
        lambda run: run.balance.seconds,
    ):
        assert toy.differences(flags(again), flags(rounds)) == []


@dataclass(frozen=True)
class State:
    model: Params
    count: int


def test_a_state_of_several_parts_comes_back_as_itself():
    fed, state = started().fed, State(Params(a=torch.ones(2)), 3)
    tree = snapshot.to_tree(state)
    assert tree == {"model": state.model, "count": 3}
    back = snapshot.from_tree(State(Params(), 0), tree, fed.device)
    assert isinstance(back, State) and back.count == 3 and type(back.model) is Params
