"""The digest of a run: equal for equal bits, whatever the ranks, the times and the folder."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcfed.core.errors import CheckpointError, DamagedError
from hpcfed.core.params import Params
from hpcfed.storage import names
from hpcfed.storage.checkpoint_parts import About, write_index, write_part
from hpcfed.storage.digest import digest
from hpcfed.storage.results import Results


def digest_of(
    run: Path, accuracy: float = 0.5, weight: float = 1, seconds: float = 1, ranks: int = 1
) -> str:
    """The digest of a small run."""
    results = Results(run, {"ranks": ranks, "placement": [ranks - 1] * 3}, {})
    for _ in range(4):
        accuracies = np.array([accuracy, np.nan, 0.0])
        of_ranks = {name: np.full(ranks, seconds) for name in ("ranks/wait", "ranks/peak_bytes")}
        times = {"clients/seconds": np.full(3, seconds), "rounds/seconds": seconds}
        results.append({"clients/accuracy": accuracies} | of_ranks | times)
    results.write()
    state = {"state": Params({"head.weight": torch.full((2, 2), weight)})}
    save(run, state, {"clients/0": {"model": Params({"body.weight": torch.ones(3)})}})
    return digest(run)


def save(run: Path, *items: dict[str, object]) -> None:
    """A checkpoint of so many ranks, by what each has."""
    folder, about = names.parts_folder(names.checkpoint_file(run, 4)), About(4, {})
    write_index(
        folder, about, {r: write_part(folder, r, has.items()) for r, has in enumerate(items)}
    )


def test_digests_of_equal_results_do_not_depend_on_ranks_times_and_folder(tmp_path):
    assert digest_of(tmp_path / "a") == digest_of(tmp_path / "b", seconds=2.0, ranks=4)


def test_digests_differ_with_one_accuracy_weight_or_sign_of_zero(tmp_path):
    digests = {
        digest_of(tmp_path / "a"),
        digest_of(tmp_path / "b", accuracy=0.5 + 2**-53),
        digest_of(tmp_path / "c", weight=1 + 2**-23),
        digest_of(tmp_path / "d", accuracy=0.0),
        digest_of(tmp_path / "e", accuracy=-0.0),
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    "name", ["clients/brier", "clients/loss_received", "clients/up", "rounds/epsilon", "final/loss"]
)
def test_every_column_and_array_that_a_run_computes_is_in_its_digest(tmp_path, name):
    digests = set()
    for i in range(2):
        run, value = tmp_path / str(i), np.full(3, float(i))
        in_arrays = name.startswith("final/")
        results = Results(run, {}, {name: value} if in_arrays else {})
        for _ in range(4):
            cell = {name: value if name.startswith("clients/") else float(i)}
            results.append({"clients/train_loss": np.ones(3)} | ({} if in_arrays else cell))
        results.write()
        save(run, {"state": 1})
        digests.add(digest(run))
    assert len(digests) == 2


def test_the_digest_takes_all_nan_for_one(tmp_path):
    odd = np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0]
    assert digest_of(tmp_path / "a", accuracy=odd) == digest_of(tmp_path / "b", accuracy=-np.nan)


def test_the_order_in_which_clients_were_saved_does_not_matter(tmp_path):
    digests = set()
    for name, order in {"a": (0, 1), "b": (1, 0)}.items():
        written(tmp_path / name, rounds=4)
        save(tmp_path / name, *({f"clients/{k}": torch.tensor([float(k)])} for k in order))
        digests.add(digest(tmp_path / name))
    assert len(digests) == 1


def written(run: Path, rounds: int) -> None:
    """Results of so many rounds."""
    results = Results(run, {}, {})
    for t in range(rounds):
        results.append({"rounds/seconds": float(t)})
    results.write()


def test_results_that_end_before_the_checkpoint_have_no_digest(tmp_path):
    written(tmp_path, rounds=3)
    save(tmp_path, {"state": 1})
    with pytest.raises(DamagedError, match="holds 3 rounds, the checkpoint .* 4: results are miss"):
        digest(tmp_path)


def test_a_run_without_a_checkpoint_has_no_digest(tmp_path):
    Results(tmp_path, {}, {}).write()
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        digest(tmp_path)
