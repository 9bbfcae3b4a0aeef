"""Names, order and looks of methods, which are the same in tables, legends and pages."""

import ast
import re
from pathlib import Path

import pytest

import hpcfed
from hpcfed.config import methods
from hpcfed.core.errors import ConfigError
from hpcfed.report.colours import LIGHT, OF_METHOD, looks
from hpcfed.report.compare import compare
from hpcfed.report.figures.command import plot
from hpcfed.report.figures.groups import groups, lines_of
from hpcfed.report.figures.runs import load_runs
from hpcfed.report.table import table
from tests.unit.test_table import lines, run, to_end

pytestmark = pytest.mark.quick
OTHERS = {  # whose docstring begins with more than the name
    *("central", "cyclic", "fd", "fedsynth", "local", "reptile", "semicyclic", "tkm", "zeroshot"),
    *("dsgd", "cfl", "ifca"),
}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    names = ("mine:Mine", "fedprox", "fedavg")
    return [run(tmp_path / name.replace(":", "."), to_end(0.5), method=name) for name in names]


def test_methods_are_spelled_as_in_their_own_files():
    for name, entry in methods.ALGORITHMS.items():
        file = Path(hpcfed.__file__).parents[1] / (entry.target.split(":")[0].replace(".", "/"))
        doc = ast.get_docstring(ast.parse(file.with_suffix(".py").read_text(encoding="utf-8")))
        assert name in OTHERS or re.match(rf"{re.escape(methods.spelling(name))}\b", doc), name
    assert methods.spelling("mine:Mine") == "Mine"


def test_methods_have_one_order_in_tables_legends_and_comparisons(runs):
    order = ["FedAvg", "FedProx", "Mine"]
    assert [line.split("  ")[0] for line in lines(table(runs))[3:6]] == order
    assert [group.label for group in groups(load_runs(runs))] == order
    compared = [line.split("  ")[0] for line in lines(compare(runs))[3:6]]
    assert compared == ["Mine (baseline)", *order[:2]]  # the first run is the baseline


def test_names_are_those_that_are_given_in_tables_legends_latex_and_comparisons(runs):
    names = "fedavg=Average,mine:Mine=Ours,digits=Digits"
    rows = [line.split("  ")[0] for line in lines(table(runs, names=names))[3:6]]
    assert rows == ["Average", "FedProx", "Ours"]
    assert r"Ours & \textbf{0.5000} \\" in table(runs, names=names, format="latex")
    assert [g.label for g in groups(load_runs(runs, names))] == ["Average", "FedProx", "Ours"]
    assert "Ours (baseline)" in compare(runs, names=names, baseline="Ours")
    assert compare(runs, names=names, baseline="mine:Mine") == compare(runs, names=names)


def test_a_name_of_no_run_and_one_name_for_two_methods_are_refused(runs):
    with pytest.raises(ConfigError, match="no method of these runs 'fedavgg'; did you mean"):
        table(runs, names="fedavgg=FedAvg")
    with pytest.raises(ConfigError, match="'fedavg' is not NAME=TEXT; write --names fedavg=FedAvg"):
        table(runs, names="fedavg")
    with pytest.raises(ConfigError, match="fedavg and fedprox are both named 'A'; give each"):
        plot(runs, names="fedavg=A,fedprox=A")


def test_a_method_has_one_colour_in_every_figure_and_its_variants_other_dashes(runs):
    alone, others = looks(["fedprox", "mine:Mine"]), looks(["local", "fedavg", "fedprox"])
    assert alone[0] == others[2]
    several = looks(["fedprox", "fedprox", "fedavg"])
    assert several[0] == alone[0] and several[1].light == several[0].light
    assert several[1].dash != several[0].dash
    lines_by_group = lines_of(groups(load_runs(runs)))
    assert [look.light for look in lines_by_group.values()] == [LIGHT[i] for i in (0, 4, 6)]


def test_all_methods_and_nine_variants_of_one_can_be_told_apart():
    assert len({(x.light, x.dash) for x in looks(list(OF_METHOD))}) == len(OF_METHOD)
    nine = looks(["fedavg", *["fedprox"] * 9])
    assert len({(look.light, look.dash) for look in nine}) == 10
    assert len({look.light for look in looks(["fedprox"] * 9)}) == 9  # no other method is there
