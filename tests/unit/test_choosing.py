"""The documentation's page for choosing a method has all of them, with what was measured."""

import json
from types import SimpleNamespace

import pytest

from hpcfed.algorithms import ALGORITHMS
from tests.documentation import documentation_module


@pytest.fixture
def choosing():
    with documentation_module("choosing") as module:
        yield module


def test_every_method_has_its_own_guide_and_a_row(choosing):
    guides = {name: vars(entry.load()).get("guide", ()) for name, entry in ALGORITHMS.items()}
    assert [name for name, guide in guides.items() if not (guide and all(guide))] == []
    cost = SimpleNamespace(down=8.0, up=8.0, trained=8.0, memory=0.0)
    choosing.cost = lambda name: cost
    page = choosing.page()
    assert all(page.count(f"](algorithms/{name}.md)") == 1 for name in ALGORITHMS)


@pytest.mark.parametrize(
    ("name", "bytes_"),
    [
        ("local", ("0", "0", "1 x")),
        ("fedavg", ("1 x", "1 x", "0")),
        ("scaffold", ("2 x", "2 x", "1 x")),  # a control variate beside the model
        ("lgfedavg", ("0.012 x", "0.012 x", "1 x")),  # the head; the body is kept
        ("ditto", ("1 x", "1 x", "1 x")),  # the personal model
    ],
)
def test_bytes_are_multiples_of_the_weights_that_a_client_trains(choosing, name, bytes_):
    assert choosing.row(name, {})[6:9] == bytes_


def test_passes_and_seconds_come_from_the_committed_table_or_are_not_measured(choosing, tmp_path):
    choosing.MEASURED = tmp_path / "table.json"
    assert choosing.measured() == {}
    assert choosing.row("fedavg", {})[9:11] == ("not measured yet", "not measured yet")
    table = {
        "fashion-mnist": [
            {"method": "fedavg", "epochs": 10.0, "seconds_ratio": 1.0},
            {"method": "moon", "epochs": 20.0, "seconds_ratio": 1.5},
            {"method": "moon", "epochs": 30.0, "seconds_ratio": 3.0},
        ],
        "cifar10": [],
    }
    choosing.MEASURED.write_text(json.dumps(table))
    assert choosing.row("moon", choosing.measured())[9:11] == ("2 x", "1.5 x")
