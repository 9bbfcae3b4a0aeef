"""`hpcfed scaling`: time, efficiency and phases of one job on several numbers of ranks, by hand."""

from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.errors import ConfigError
from hpcfed.report.figures.command import draw
from hpcfed.report.figures.runs import load_runs
from hpcfed.report.scaling import scaling
from hpcfed.storage.results import Results
from tests.unit.test_table import job, lines


def run(
    folder: Path,
    ranks: int,
    seconds: float,
    wait: float = 0.0,
    hardware: dict[str, object] | None = None,
    history: list[dict[str, object]] | None = None,
    ended: str = "finished",
    identity: str = "",
    **about: object,
) -> Path:
    """A run of three rounds on these ranks; the rest of a round is training."""
    folder.mkdir(parents=True)
    header = {"job": job(**about), "architectures": ["mlp", "mlp"], "ended": ended}
    header |= {
        "history": history or [],
        "run_id": identity,
        "ranks": ranks,
        "hardware": {"nodes": 1, **(hardware or {})},
        "versions": {"hpcfed": "0.1.0"},
    }
    results = Results(folder, header, {})
    for t in range(3 if ended == "finished" else 2):
        part = next((part for part in history or [] if t < part["rounds"]), {"ranks": ranks})
        phases = {"ranks/train": seconds - wait, "ranks/wait": wait}
        results.append(
            {name: np.full(part["ranks"], value) for name, value in phases.items()}
            | {"clients/accuracy": np.full(2, 0.5)}
            | {"rounds/seconds": part.get("seconds", seconds)}
        )
    results.finish()
    return folder


def test_speedup_and_efficiency_are_relative_to_the_fewest_ranks_of_the_same_job(tmp_path):
    times = {1: 4.0, 2: 2.0, 8: 1.0}
    runs = [run(tmp_path / str(n), n, seconds, wait=0.25) for n, seconds in times.items()]
    text = lines(scaling(runs, names="fedavg=Average"))
    assert text[2].split() == [
        *("job,", "ranks", "seconds", "per", "round", "speedup", "efficiency", "train", "wait")
    ]
    assert [line.split()[2:] for line in text[3:6]] == [
        ["4", "s", "1.00", "100%", "94%", "6%"],
        ["2", "s", "2.00", "100%", "88%", "12%"],
        ["1", "s", "4.00", "50%", "75%", "25%"],
    ]
    assert text[3].startswith("Average, 1") and text[-1] == str(tmp_path / "1" / "scaling.png")
    assert (tmp_path / "1" / "scaling.png").stat().st_size > 1000
    with pytest.raises(ConfigError, match="have one number of ranks; run it on several"):
        scaling(runs[:1])


def test_several_jobs_have_a_line_and_a_panel_of_phases_each(tmp_path):
    runs = [
        run(tmp_path / f"{method}{n}", n, 4.0 / n, method=method)
        for method in ("fedprox", "fedavg")
        for n in (1, 2)
    ]
    figure = draw(load_runs(runs), "scaling")["scaling"]
    assert len(figure.axes) == 4
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        *("FedAvg", "FedProx", "train")
    ]


def test_ranks_do_not_hide_a_field_in_which_jobs_differ(tmp_path):
    runs = [
        run(tmp_path / str(ranks), ranks, 4.0 / ranks, run={"precision": precision})
        for ranks, precision in ((1, "float32"), (2, "bf16"), (4, "bf16"))
    ]
    text = scaling(runs)
    assert "precision=float32, 1  4 s                1.00     100%" in text
    assert "precision=bf16, 2     2 s                1.00     100%" in text  # no speedup of 2
    assert "precision=bf16, 4     1 s                2.00     100%" in text


def test_runs_on_different_processors_or_gpus_are_named(tmp_path):
    kinds = [{"cpu": "one, AVX2", "device": "A100"}, {"cpu": "one, AVX2", "device": "H100"}]
    runs = [run(tmp_path / str(i), i + 1, 2.0, hardware=kind) for i, kind in enumerate(kinds)]
    text = str(scaling(runs))
    assert "the runs are of different GPUs or CPUs: A100, H100" in text
    assert "different processors" not in text


def test_a_run_that_is_not_finished_is_left_out_with_a_note(tmp_path):
    ends = {1: "stopped", 2: "finished", 4: "finished"}
    runs = [run(tmp_path / str(n), n, 4.0 / n, ended=ended) for n, ended in ends.items()]
    text = lines(scaling(runs))
    assert [line.split()[1] for line in text if line.startswith("FedAvg")] == ["2", "4"]
    assert f"left out: {runs[0]}: 2 of 3 rounds are done" in text


def test_rounds_that_a_resumed_run_did_on_other_ranks_do_not_count(tmp_path):
    resumed = [{"rounds": 2, "ranks": 2, "seconds": 9.0, "hardware": {"nodes": 1}}]
    again = [{"rounds": 3, "ranks": 2, "hardware": {"nodes": 1}}]  # on 8 ranks only final steps
    runs = [run(tmp_path / "1", 1, 4.0, history=resumed), run(tmp_path / "2", 2, 2.0)]
    runs += [run(tmp_path / "8", 8, 1.0, history=again)]
    text = lines(scaling(runs))
    rows = [line.split()[1:5] for line in text if line.startswith("FedAvg")]
    assert rows == [["1", "4", "s", "1.00"], ["2", "2", "s", "2.00"]]
    for path, n in ((runs[0], 2), (runs[2], 3)):
        note = f"{path}: {n} of its 3 rounds were done on other ranks, before it was resumed"
        assert f"{note}; left out" in text


def test_two_runs_of_one_seed_on_the_same_ranks_are_refused_as_a_table_refuses_them(tmp_path):
    runs = [run(tmp_path / name, ranks, 4.0) for name, ranks in (("a", 1), ("b", 1), ("c", 2))]
    with pytest.raises(ConfigError, match=r"2 runs of one job on 1 rank .* seed: \S*/a, \S*/b; gi"):
        scaling(runs)
    copies = [run(tmp_path / f"copies/{name}", 1, 4.0, identity="x") for name in "ab"]
    with pytest.raises(ConfigError, match=r"copies of one run: \S*/a, \S*/b; give one of them$"):
        scaling([*copies, runs[2]])
    more = [run(tmp_path / f"seed{n}", n, 4.0, seed=1) for n in (1, 2)]
    assert scaling([runs[0], runs[2], *more])
