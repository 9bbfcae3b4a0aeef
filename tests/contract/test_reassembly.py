"""pFedHR: its distances, groups and candidates, and what it becomes in neutral settings."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hpcfed.algorithms.public_data import reassembly
from hpcfed.algorithms.public_data.blocks import fits, nbytes
from hpcfed.algorithms.public_data.pfedhr import closest
from hpcfed.algorithms.public_data.reassembly import Piece, Reassembly
from hpcfed.comm import Serial
from hpcfed.engine.rounds import Rounds
from hpcfed.training import similarity
from hpcfed.training.infer import outputs
from hpcfed.training.losses import distil, soften
from hpcfed.training.server import predictor
from tests.contract import toy
from tests.contract.test_equalities import run
from tests.threads import spmd

ALONE = ("--algorithm.lam", "0", "--algorithm.server_epochs", "3")  # its default
KINDS = ("mlp", "cnn", "fedhenn-1", "fedhenn-3", "logistic")
LABELS = {  # of the public data: flags
    "labelled": ("--algorithm.candidates", "3"),
    "unlabelled": ("--algorithm.public_labels", "false"),
    "merged": ("--algorithm.merge", "true"),
}


def begun(*flags: str) -> Rounds:
    return toy.start(Serial(), toy.given("pfedhr", *flags))


def test_without_a_teacher_it_is_local_training_and_nothing_is_sent():
    ours, theirs = run("pfedhr", *ALONE), run("local")
    for part in ("weights", "memory", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    assert not ours.column("down").any() and not ours.column("up").any()


@pytest.mark.parametrize("case", LABELS)
def test_ranks_do_not_matter_with_any_public_data(case: str):
    job = toy.given("pfedhr", *LABELS[case], "--rounds", "2")
    want = toy.run(Serial(), job)
    assert want.memory[int(np.flatnonzero(want.column("cohort")[0])[0])]["teacher"].shape[1] == 4
    for got in spmd(3, lambda comm: toy.run(comm, job)):
        assert toy.differences(got, want) == []


def test_labels_of_public_data_have_no_effect_if_they_are_not_learnt():
    def taught(labels: bool, wrong: int) -> torch.Tensor:
        flags = ("--algorithm.public_labels", str(labels).lower())
        rounds = begun("--rounds", "1", *flags)
        rounds.fed.public.labels = (rounds.fed.public.labels + wrong) % 4
        rounds.step()
        return next(c.memory["teacher"] for c in rounds.fed.clients.values() if c.memory)

    assert torch.equal(taught(False, 0), taught(False, 1))
    assert not torch.equal(taught(True, 0), taught(True, 1))


# Distances and groups


def test_the_distance_of_blocks_is_symmetric_and_least_for_a_block_and_itself():
    g = torch.Generator().manual_seed(0)
    a, b, c, d = (similarity.ready(torch.randn(9, n, generator=g)) for n in (3, 5, 4, 2))
    assert reassembly.dissimilarity(a, b, a, b) == pytest.approx(0.5, abs=1e-6)
    assert reassembly.dissimilarity(a, b, c, d) == pytest.approx(
        reassembly.dissimilarity(c, d, a, b)
    )
    assert reassembly.dissimilarity(a, b, c, d) > 0.5
    both = float(similarity.agreement(a, c) + similarity.agreement(b, d))
    assert reassembly.dissimilarity(a, b, c, d) == pytest.approx(1 / both)
    still = similarity.ready(torch.ones(9, 3))  # constant: nothing to compare
    assert (
        reassembly.dissimilarity(still, still, a, b) == reassembly.FAR
    )  # far, not near, as in the code


def test_equal_models_have_equal_distances_of_their_blocks():
    rounds = begun("--models.mix", "mlp")
    fed = rounds.fed
    start = fed.initial()
    between = {k: reassembly.features(fed, "mlp", start) for k in (0, 1)}
    table = reassembly.distances(fed, between)
    assert table.shape == (6, 6) and torch.equal(table, table.T)
    assert torch.allclose(table.diagonal(), torch.full((6,), 0.5).double(), atol=1e-5)
    assert torch.equal(table[:3, :3], table[3:, 3:])


def test_blocks_are_grouped_around_the_one_that_is_nearest_to_the_others():
    places = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 9.0])
    distance = np.abs(places[:, None] - places) + 0.5
    assert reassembly.group(distance, 1) == [0] * 6
    assert len(set(reassembly.group(distance, 9))) == 6  # no more than there are blocks
    three = reassembly.group(distance, 3)
    assert three[0] == three[1] == three[2] and three[3] == three[4]
    assert len(set(three)) == 3
    assert reassembly.group(np.full((4, 4), 0.5), 2) == [0] * 4  # an empty group is none


# Candidates


def every_row(possible: Reassembly) -> set[tuple[Piece, ...]]:
    """The candidates by the rules as they are written, of all rows of blocks that there are."""
    of = possible.pieces
    rows = [r for n in range(1, 5) for r in product(of, repeat=n)]
    calls = []
    for row in rows:
        natural = all(fits(a.block, b.block) for a, b in pairwise(row))
        if row[0].block.takes_data and row[-1].block.last and natural:
            calls.append(row)
    sizes = [(len({p.block.kind for p in r}), len({p.group for p in r})) for r in calls]
    return {row for row, score in zip(calls, sizes, strict=True) if score == max(sizes)}


def test_candidates_are_all_rows_that_keep_the_rules():
    fed = begun("--models.mix", "mlp,fedhenn-1,cnn", "--algorithm.groups", "3").fed
    every = {kind: reassembly.blocks(fed, kind) for kind in ("mlp", "fedhenn-1", "cnn")}
    member = [0, 1, 2, 0, 2, 1, 0, 1, 2]  # of 3, 2 and 4 blocks
    possible = Reassembly(every, member)
    rows = list(possible)
    assert set(rows) == every_row(possible) and len(rows) == possible.size
    assert len(set(rows)) == len(rows)
    few = possible.draw(3, np.random.default_rng(0))
    assert len(set(few)) == min(3, len(rows)) and set(few) <= set(rows)
    largest = max(
        sum(nbytes(None if i == 0 else row[i - 1].block, p.block) for i, p in enumerate(row))
        for row in every_row(Reassembly(every))
    )
    assert Reassembly(every).largest() >= largest


def test_one_model_alone_is_put_together_again():
    fed = begun("--models.mix", "cnn").fed
    blocks = reassembly.blocks(fed, "cnn")
    assert list(Reassembly({0: blocks}, [0, 1, 2, 3])) == [
        tuple(Piece(0, block, i) for i, block in enumerate(blocks))
    ]


def test_the_best_of_equal_models_candidates_is_the_clients_own_function():
    flags = ("--models.mix", "mlp", "--algorithm.server_epochs", "0")
    fed = begun(*flags, "--algorithm.candidates", "1000").fed
    start = fed.initial()
    models, kinds = dict.fromkeys((0, 2, 4), start), dict.fromkeys((0, 2, 4), "mlp")
    method = fed.job.algorithm
    rows = list(reassembly.reassembly(fed, kinds, models, 3))
    candidates = [method.make(fed, models, row, 0, i) for i, row in enumerate(rows)]
    best = closest(fed, models, [logits for _, logits in candidates])
    own_logits = outputs(fed, predictor(fed, "mlp", start), fed.public)
    for i in best.values():
        assert torch.equal(candidates[i][1], own_logits)
    assert len(rows) >= 27  # a block of each depth, of any of three models


def test_fine_tuning_a_candidate_changes_neither_models_nor_other_candidates():
    fed = begun("--models.mix", "mlp").fed
    models = {0: fed.initial(), 1: fed.initial(k=1)}
    before = {k: model.clone() for k, model in models.items()}
    kinds, method = dict.fromkeys(models, "mlp"), fed.job.algorithm
    rows = list(reassembly.reassembly(fed, kinds, models, 2))
    one = method.make(fed, models, rows[0], 0, 0)
    method.make(fed, models, rows[1], 0, 1)
    assert toy.differences(one, method.make(fed, models, rows[0], 0, 0)) == []
    assert toy.differences(models, before) == []


# Clients


def test_a_clients_loss_by_hand():
    rounds = begun()
    method, client = rounds.algorithm, rounds.fed.clients[0]
    z, teacher = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    y = torch.tensor([0, 1])
    got = method.loss(client, None, lambda x: z, None, (y, teacher))
    assert torch.allclose(got, F.cross_entropy(z, y) + 0.1 * distil(teacher, z))
    soft = soften(z)
    other = method.model_copy(update={"kl_reverse": True})
    want = (soft * (soft / teacher).log()).sum(1).mean()
    assert torch.allclose(other.distance(teacher, z), want)
    assert torch.equal(method.loss(client, None, lambda x: z, None, y), F.cross_entropy(z, y))


def test_a_client_keeps_its_teacher_through_rounds_in_which_it_takes_no_part():
    rounds, rounds_seen = begun("--rounds", "3"), {}
    for t in range(3):
        cohort = rounds.algorithm.cohort(rounds.fed, t)
        rounds.step()
        for k, client in rounds.fed.clients.items():
            now = client.memory.get("teacher")
            if k not in cohort:
                assert (now is None) == (k not in rounds_seen)
                assert now is None or torch.equal(now, rounds_seen[k])
            elif now is not None:
                rounds_seen[k] = now.clone()
    assert rounds_seen
