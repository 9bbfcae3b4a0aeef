"""The numbers behind the figures of trained models, by hand; and that each picture is drawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hpcfed.core.errors import ConfigError
from hpcfed.core.rng import stream
from hpcfed.models.trained import About, Trained, assemble_model
from hpcfed.report.figures import models, models_conductance, models_tsne
from hpcfed.results.run import Run
from hpcfed.results.trained.probe import choose_images, conductance
from hpcfed.storage import probe
from hpcfed.storage.probe import Probe
from hpcfed.storage.record import Record
from hpcfed.training.similarity import linear_cka, pairwise_cka

CLASSES = ["cat", "dog", "owl"]


def answers(
    predictions: list[list[int]],
    labels: list[int],
    widths: tuple[int, ...] = (4, 4),
    conductances: list[list[float]] | None = None,
    kinds: list[str] | None = None,
) -> Probe:
    """conductances: of the first example, which is the one image; none: there is no image."""
    K, N, M = len(predictions), len(labels), int(conductances is not None)
    g = stream(0, "answers")
    return Probe(
        header={
            "rounds": 3,
            "classes": CLASSES,
            "architectures": kinds or ["mlp"] * K,
            "checkpoint": "",
            "of": K,
        },
        clients=np.arange(K) * 2,
        rows=np.arange(N),
        labels=np.array(labels),
        predictions=np.array(predictions),
        representations=[g.normal(size=(N, d)).astype(np.float32) for d in widths],
        images=np.arange(M),
        image_labels=np.array(labels[:M]),
        image_predictions=np.array(predictions)[:, :M],
        conductance=[
            np.array([c] * M, np.float32).reshape(M, len(c)) for c in conductances or [[]] * K
        ],
        rounds=np.array([1, 3]),
        cka=np.stack([np.eye(K), np.full((K, K), 0.5) + 0.5 * np.eye(K)]),
    )


TWO = answers([[0, 1, 1, 0], [0, 0, 1, 2]], labels=[0, 0, 1, 1])


def test_confusion_counts_the_answers_of_all_clients_and_rows_sum_to_one():
    confusion = models.count_confusions("a", TWO)
    assert confusion.counts.tolist() == [[3, 1, 0], [1, 2, 1], [0, 0, 0]]
    assert (
        confusion.shares[:2].tolist() == [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25]]
        and np.isnan(confusion.shares[2]).all()
    )


def test_the_mean_of_the_cka_is_over_pairs_of_different_clients():
    similarity = models.compare_clients("a", TWO)
    assert similarity.means.tolist() == [0.0, 0.5] and similarity.rounds.tolist() == [1, 3]


def test_cka_of_equal_representations_is_one_and_of_unrelated_ones_zero():
    a = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    b = torch.tensor([[0.0], [0.0], [1.0], [-1.0]])
    table = pairwise_cka([a, 3 * a + 1, b])
    assert table.numpy() == pytest.approx(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]]), abs=1e-6)
    g = stream(0, "cka")
    x, y = (torch.from_numpy(g.normal(size=(9, d))).float() for d in (3, 5))
    assert pairwise_cka([x, y])[1, 0] == linear_cka(y, x)


def test_ranks_are_counted_from_the_unit_that_matters_least_and_equal_ones_share_theirs():
    probe = answers([[0], [0]], [0], conductances=[[0.3, -1.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    ranks = models_conductance.rank_units("a", probe, 0)
    # 4, 1, 2.5, 2.5 and 1, 2, 3, 4 of 4 units, which come in the order of their means
    assert (4 * ranks.shares).T.tolist() == [[1, 4, 2.5, 2.5], [2, 1, 3, 4]]
    assert ranks.clients == ["0", "2"] and ranks.right == 2
    assert ranks.agreement(same=True) == pytest.approx(-1.5 / np.sqrt(4.5 * 5))
    assert np.isnan(ranks.agreement(same=False))


def test_clients_are_sorted_by_architecture_in_the_similarity_matrix():
    up, down = [1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]
    probe = answers([[0], [1], [0]], [0], (4,) * 3, [up, down, up], ["cnn", "mlp", "cnn"])
    ranks = models_conductance.rank_units("a", probe, 0)
    assert ranks.clients == ["0", "4", "2"] and ranks.kinds.tolist() == ["cnn", "cnn", "mlp"]
    assert (ranks.agreement(same=True), ranks.agreement(same=False)) == (1.0, -1.0)
    assert ranks.right == 2  # of cat; the client that is wrong is compared too


def test_only_clients_of_the_common_width_are_ranked():
    probe = answers([[0]] * 3, [0], (4, 4, 2), [[4, 3, 2, 1], [1, 2, 3, 4], [1, 2]])
    assert models_conductance.rank_units("a", probe, 0).clients == ["0", "2"]
    with pytest.raises(ConfigError, match="its inputs are not images"):
        models_conductance.rank_units("a", answers([[1], [2]], [0]), 0)


def test_images_are_of_different_classes_and_depend_on_the_labels_alone():
    assert choose_images(np.array([2, 2, 0, 1, 0])).tolist() == [2, 3, 0]
    assert choose_images(np.repeat(np.arange(10), 3)).tolist() == [0, 9, 18, 27]
    assert choose_images(np.zeros(0, int)).tolist() == []


def test_all_runs_show_the_image_that_most_clients_of_all_runs_are_right_about(tmp_path):
    one = answers([[0, 1], [0, 0]], [0, 1], (2, 2), [[1, 2], [1, 2]])
    two = {"images": np.arange(2), "image_labels": one.labels}
    both = [np.ones((2, 2), np.float32)] * 2
    one = replace(one, **two, image_predictions=np.array([[0, 0], [0, 2]]), conductance=both)
    other = replace(one, image_predictions=np.array([[1, 1], [2, 1]]))
    assert [models_conductance.choose_image(runs) for runs in ([one], [other], [one, other])] == [
        0,
        1,
        0,
    ]
    runs = [run_with(tmp_path / name, stored) for name, stored in (("a", other), ("b", one))]
    assert {ranks.label for ranks in models_conductance.numbers(runs)} == {"cat"}
    elsewhere = run_with(tmp_path / "c", replace(other, images=np.arange(1, 3)))
    labels = [ranks.label for ranks in models_conductance.numbers([*runs, elsewhere])]
    assert labels == ["cat", "cat", "dog"]


class Linear(Trained):
    """Two inputs, two units, two classes, by hand."""

    def __init__(self, about: About):
        super().__init__(about)
        self.model.body = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))


def test_conductance_of_a_linear_model_is_unit_times_weight():
    about = About("logistic", (1, 1, 2), ("a", "b"), 2, False, 0, (1.0,), (1.0,), 0, 1, "")
    model = Linear(about).eval()
    tensors = {
        "body.1.weight": [[1.0, 2.0], [0.0, -1.0]],
        "head.weight": [[1.0, 0.0], [3.0, 5.0]],
        "head.bias": [0, 7],
    }
    model.model.load_state_dict({name: torch.tensor(value) for name, value in tensors.items()})
    x = torch.tensor([[[2.0, 4.0]]])  # normalised: 1 and 3, so the units are 7 and -3
    values = conductance(model, torch.stack([x, x]), np.array([1, 0]))
    assert values[0] == pytest.approx([3 * 7, 5 * -3], rel=2e-3)  # captum leaves out the ends
    assert values[1] == pytest.approx([7, 0], rel=2e-3)


def test_a_model_with_others_tensors_is_refused():
    from hpcfed.core.errors import CheckpointError

    about = About("logistic", (1, 1, 2), ("a", "b"), 2, False, 0, (1.0,), (1.0,), 0, 1, "")
    with pytest.raises(CheckpointError, match="client 0: these tensors are not those of logistic"):
        assemble_model(
            about, {"model.head.weight": torch.zeros(2, 3), "model.head.bias": torch.zeros(2)}
        )


def test_a_plane_has_a_point_for_each_image_and_client_and_is_the_same_each_time():
    probe = answers([[0] * 6] * 3, [0, 1, 2] * 2, (4, 4, 3))
    plane = models_tsne.plane("a", probe, seed=0)
    assert plane.xy.shape == (12, 2) and plane.labels.tolist() == [0, 1, 2] * 4
    assert plane.whose.tolist() == [0] * 6 + [2] * 6 and "2 of 3 clients" in plane.title
    assert (models_tsne.plane("a", probe, seed=0).xy == plane.xy).all()
    with pytest.raises(ConfigError, match="2 points are too few"):
        models_tsne.plane("a", answers([[0], [0]], [0]), seed=0)


def test_of_many_clients_some_are_in_the_plane_and_its_title_says_of_how_many(monkeypatch):
    monkeypatch.setattr(models_tsne, "CLIENTS", 2)
    probe = answers([[0] * 6] * 3, [0, 1, 2] * 2, (4, 4, 4))
    probe.header["of"] = 100
    plane = models_tsne.plane("a", probe, seed=0)
    assert plane.clients.tolist() == [0, 4] and "2 of 100 clients" in plane.title


@pytest.mark.parametrize(
    "figure", [models.confusion, models.cka, models_conductance.figure, models_tsne.figure]
)
@pytest.mark.parametrize("n", [1, 4])
def test_pictures_are_drawn_of_one_run_and_of_several(figure, n, tmp_path):
    probe = answers([[0, 1, 2, 0, 1]] * 2, [0, 1, 2, 0, 1], conductances=[[0.1, 0.2, 0.3, 0.4]] * 2)
    late = replace(
        probe, rounds=probe.rounds[1:], cka=probe.cka[1:]
    )  # the first checkpoint is gone
    runs = [run_with(tmp_path / f"run{i}", late if i == 1 else probe) for i in range(n)]
    picture = figure(runs)
    picture.canvas.draw()
    assert len(picture.axes) > n  # panels, and what their colours mean


def test_seeds_of_a_method_are_one_matrix_of_confusion():
    first = models.count_confusions("seed 0", TWO)
    both = models.pool_seeds("fedavg", [first, first])
    assert both.title == f"fedavg\n2 seeds, each {first.title.partition(chr(10))[2]}"
    assert both.counts.tolist() == (2 * first.counts).tolist()
    np.testing.assert_array_equal(both.shares, first.shares)


def run_with(folder: Path, answers_of: Probe) -> Run:
    probe.write(folder, answers_of)
    job = {"seed": 0, "algorithm": {"name": "local"}, "clients": 2}
    job |= {"data": {"name": "digits", "partition": "iid"}}
    run = Run(folder, record=Record({"job": job}, {}, {}, 0))
    run.name = folder.name
    return run
