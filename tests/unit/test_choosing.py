"""The documentation's page for choosing a method has all of them, with what was measured."""

import json

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
    page = choosing.page()
    assert all(page.count(f"](algorithms/{name}.md)") == 1 for name in ALGORITHMS)


def test_costs_come_from_the_committed_table_or_are_not_measured(choosing, tmp_path):
    choosing.MEASURED = tmp_path / "table.json"
    assert choosing.measured() == {}
    assert choosing.row("fedavg", {})[6:8] == ("not measured yet", "not measured yet")
    first, second = (
        {"method": "moon", "label": label, "seconds_ratio": ratio, "bytes_ratio": 1.0}
        for label, ratio in (("MOON", 1.5), ("MOON, again", 3.0))
    )
    table = {"fashion-mnist": [first, second, {"method": "FedProx"}], "cifar10": []}
    choosing.MEASURED.write_text(json.dumps(table))
    assert choosing.row("moon", choosing.measured())[6:8] == ("1.5 x", "1 x")
