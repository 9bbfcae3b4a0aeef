"""benchmarks/scaling.py: what it runs, its laws by hand, its table and picture; nothing is measured
here.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling
from benchmarks.nodes import Nodes
from benchmarks.plan import HERE, NETWORKS, RANKS, row
from benchmarks.scalingplot import draw


def point(ranks: int, efficiency: float, room: bool = True) -> dict[str, Any]:
    parts = dict.fromkeys((*scaling.PHASES, "other"), 0.5)
    return {
        "ranks": ranks,
        "nodes": 1,
        "room": room,
        "processor": "cpu",
        "seconds": 3.5,
        "parts": parts,
        "efficiency": [efficiency] * 3,
    }


def test_the_parallel_fraction_is_that_of_amdahl_or_gustafson():
    amdahl = [point(R, 1 / (R * (0.1 + 0.9 / R))) for R in (1, 2, 4, 8)]
    assert scaling.parallel("strong", amdahl) == pytest.approx(0.9)
    gustafson = [point(R, (0.1 + 0.9 * R) / R) for R in (1, 2, 4, 8)]
    assert scaling.parallel("weak", gustafson) == pytest.approx(0.9)


def test_ranks_that_shared_cores_are_not_in_the_fit():
    ideal = [point(1, 1.0), point(2, 1.0)]
    assert scaling.parallel("strong", [*ideal, point(4, 0.5, room=False)]) == 1.0
    assert scaling.parallel("strong", ideal[:1]) is None


def test_efficiency_is_against_one_rank_of_the_same_pass():
    def run(seconds: float) -> dict[str, Any]:
        return point(1, 1.0) | {"seconds": seconds}

    runs = {1: [run(8.0), run(16.0)], 4: [run(2.0), run(8.0)]}
    strong, weak = (
        scaling.points(mode, runs)["points"][1]["efficiency"][0] for mode in ("strong", "weak")
    )
    assert (strong, weak) == (
        0.75,
        3.0,
    )  # 4 / 4 and 2 / 4, median of both; as much work a rank: 4 and 2


def test_strong_has_fixed_clients_and_weak_fixed_clients_a_rank():
    options = scaling.options(
        [
            "job.toml",
            "--clients",
            "12",
            "--per-rank",
            "3",
            "--examples",
            "10",
            "--launcher",
            "srun -n {ranks} --exact",
            "--field",
            "--models.mix mlp",
        ]
    )
    strong, weak = (scaling.command(options, mode, 8, "folder") for mode in ("strong", "weak"))
    assert strong[:4] == ["srun", "-n", "8", "--exact"] and strong[5:10] == [
        "-m",
        "hpcfed.main",
        "job.toml",
        "--models.mix",
        "mlp",
    ]
    flags = [dict(pairwise(words)) for words in (strong, weak)]
    assert [f["--clients"] for f in flags] == ["12", "24"]
    assert [f["--data.train_limit"] for f in flags] == ["120", "240"]


def test_ranks_double_up_to_the_most():
    assert (
        scaling.doubled(8) == [1, 2, 4, 8]
        and scaling.doubled(15) == [1, 2, 4, 8, 15]
        and scaling.doubled(1) == [1]
    )


def test_table_and_picture_mark_ranks_that_shared_cores(tmp_path: Path):
    points = {
        "points": [point(1, 1.0), point(2, 0.9), point(4, 0.4, room=False)],
        "parallel_fraction": 0.89,
    }
    text = scaling.table("strong", points)
    assert (
        "| 4 * | 1 | 3.5 |" in text and "Parallel fraction (Amdahl, least squares): 0.890" in text
    )
    draw("strong", points, tmp_path / "strong.png")
    assert (tmp_path / "strong.png").read_bytes()[:4] == b"\x89PNG"


def test_a_prediction_is_off_by_as_much_above_as_below():
    passes = [
        {"predicted": p, "measured": 1.0, "parts": {}, "network": HERE} for p in (0.8, 0.8, 0.8)
    ]
    assert (
        row(RANKS[1], passes).ratio.median == pytest.approx(1.25) and not row(RANKS[1], passes).met
    )
    assert row(RANKS[1], [{**p, "predicted": 1.1} for p in passes]).met


def test_the_cases_of_the_model_name_their_network():
    assert NETWORKS[-1].name == "2 nodes of 2 ranks, 20 ms, 100 Mb/s"


def test_the_launcher_of_two_nodes_takes_the_command_after_it():
    nodes = Nodes(0.0, 1e6)
    nodes.agent = Path("agent")
    words = scaling.shlex.split(nodes.launcher(2).format(ranks=4))
    assert "-np 4" in words[-2] and words[-2].endswith('"$@"') and words[-1] == "sh"
