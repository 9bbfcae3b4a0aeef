"""The papers' tables: each job of jobs/ has one cell, with the paper's number beside it."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hpcfed.core.errors import ConfigError
from hpcfed.launch.sweep.grid import define
from hpcfed.report.layouts import Layout, fits, layout, otherwise, papers
from hpcfed.report.table import table
from hpcfed.results.run import Run
from hpcfed.storage.results import Record, Results
from tests.unit import test_jobs, test_jobs_fedhenn

ROOT = Path(__file__).parents[2]
LINE = re.compile(
    r"^\| .+ \| `hpcfed sweep (.+)` \| `hpcfed table (.+) --layout (.+)` \|$", re.MULTILINE
)
COMMANDS = LINE.findall((ROOT / "jobs/README.md").read_text())


def cells(run: Run, layout: Layout) -> list[tuple[str, str, str]]:
    """Row, column and the paper's number of the cells that a run has."""
    return [
        (", ".join(row.label), ", ".join(column.label), number.replace("±", "+-"))
        for row in layout.rows
        for column, number in zip(layout.columns, row.paper, strict=True)
        if fits(run, row, column)
    ]


def told(path: Path, table: str) -> set[tuple[str, str, str]]:
    """The same, from the first line of a job file."""
    if table.startswith("fedclassavg"):
        _, row, column, paper = test_jobs.cell(str(path.relative_to(ROOT / "jobs")))
        return {(column, row, paper) if table.endswith("4") else (row, column, paper)}
    _, method, setting, paper = test_jobs_fedhenn.cell(path.name)
    shared, personal = (paper.removeprefix("global ").split(", personal ") * 2)[:2]
    if table.endswith("1"):
        return {(setting, "FedHeNN global" if "FedHeNN" in method else method, shared)}
    return {
        (setting, method, personal)
        if table.endswith("2")
        else (setting, "RBF CKA", paper.split()[0])
    }


def defined(words: str) -> list[Run]:
    """Runs of a command line of jobs/README.md, whose patterns a shell expands; each under the name
    of its job file.
    """
    output = subprocess.run(
        ["bash", "-c", f"echo {words}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    expanded = [f"{ROOT}/{word}" if word.startswith("jobs/") else word for word in output.split()]
    planned = define(expanded[: expanded.index("--out")], Path("s"), 1, "").runs
    runs = []
    for member in planned:
        record = Record({}, {}, {}, member.fields["rounds"])
        run = Run(member.words[0], record=record).with_fields(member.fields)
        runs.append(run)
    return runs


@pytest.mark.parametrize(
    ("words", "name"), [(words, name) for words, _, name in COMMANDS], ids=list(papers())
)
def test_the_sweep_of_a_table_fills_each_cell_once_with_the_runs_of_the_job_files(words, name):
    design, runs = layout(name), defined(words)
    groups = [
        [[run for run in runs if fits(run, row, column)] for column in design.columns]
        for row in design.rows
    ]
    assert {len(group) for line in groups for group in line} == {1}
    if name == "fedclassavg-5":
        return  # no job file is of that table
    assert list(otherwise(groups, design)) == []
    for run in runs:
        if name != "fedhenn-3" or "rbf" in run.name:  # the linear ones name another table
            assert set(cells(run, design)) == told(Path(run.name), name)


def test_no_cell_depends_on_the_files_that_make_a_job_small():
    small = (test_jobs.SCALE | test_jobs_fedhenn.SCALE) - {"models.mix"}
    layouts = [layout(name) for name in papers()]
    assert {
        field for one in layouts for slot in (*one.rows, *one.columns) for field in slot.where
    } & small == set()


def test_every_cell_has_the_papers_number():
    for name in papers():
        design = layout(name)
        assert all(len(row.paper) == len(design.columns) for row in design.rows), name


def run(
    folder: Path,
    job: str,
    flags: dict[str, object],
    last: float,
    up: int = 20,
    clients: tuple[float, float] = (-0.1, 0.1),
) -> Path:
    """A run of this job, with fields that are otherwise, of two clients.

    clients: by how much their accuracies differ from `last`.
    """
    plain = test_jobs.job(job).plain()
    for field, value in flags.items():
        part, _, name = field.rpartition(".")
        (plain[part] if part else plain)[name] = value
    folder.mkdir(parents=True)
    header = {"job": plain, "ranks": 1, "architectures": ["mlp"] * 2, "ended": "finished"}
    results = Results(folder, header, {})
    for _ in range(plain["rounds"]):
        results.append(
            {
                "clients/accuracy": last + np.array(clients),
                "clients/cohort": np.ones(2),
                "clients/id": np.arange(2),
                "clients/architecture": np.zeros(2, dtype=np.int64),
                "clients/up": np.array([up, up]),
                "clients/down": np.array([up, up]),
            }
        )
    results.finish()
    return folder


def test_a_table_has_the_papers_layout_and_lists_missing_and_different_runs(tmp_path):
    runs = [
        run(tmp_path / name, f"table4/{name}-cifar10.toml", {"rounds": 1}, mean)
        for name, mean in (("ca", 0.5), ("ca-cl", 0.75))
    ]
    head, _, heads, cifar, fashion, letters = table(runs, layout="fedclassavg-4").splitlines()
    assert head.startswith(
        "Ablation study (CA: classifier averaging, PR: proximal regularisation, CL: contrastive"
    )
    assert head.endswith(
        ", table 4). Test accuracy of each client's model after local training in the last "
        "round, mean over clients; one seed. Not as in the jobs of this table: rounds = 1, there "
        "300. *: best of its row."
    )
    assert " ".join(heads.split()) == "data set CA +PR +CL +PR, CL"
    assert cifar.split() == ["CIFAR-10", "0.5000", "no", "run", "0.7500", "*", "no", "run"]
    assert fashion.startswith("Fashion-MNIST") and letters.split().count("no") == 4
    latex = table(runs, layout="fedclassavg-4", format="latex")
    (caption,) = [line for line in latex.splitlines() if "caption" in line]
    assert "rounds = 1, there 300" in caption


def test_a_papers_table_says_which_cells_are_means_over_different_clients(tmp_path):
    fields = {"rounds": 1, "clients": 2}
    one = run(tmp_path / "a", "table4/ca-cifar10.toml", fields, 0.5)
    gap = run(tmp_path / "b", "table4/ca-cl-cifar10.toml", fields, 0.5, clients=(np.nan, 0.1))
    text = table([one, gap], layout="fedclassavg-4").splitlines()
    assert text[-1] == (
        "CIFAR-10: means over different clients, because not all have a value: "
        "CA 2 clients, +CL 1 client"
    )
    assert "different numbers" not in table([one], layout="fedclassavg-4")


def test_the_papers_numbers_are_shown_beside_ours_on_request(tmp_path):
    one = run(tmp_path / "a", "fedclassavg-cifar10-skewed.toml", {"rounds": 1}, 0.5)
    text = table([one], layout="fedclassavg-2", paper=True)
    assert "0.5000 ± 0.1000 [0.9202 ± 0.0562]" in text and "no run [0.7670 ± 0.0532]" in text
    assert "over clients; in brackets the paper's." in text and "[" not in table(
        [one], layout="fedclassavg-2"
    )
    typeset, full = (
        table([one], layout="fedclassavg-2", paper=True, format=form) for form in ("latex", "csv")
    )
    assert r"0.5000 $\pm$ 0.1000 [0.9202 $\pm$ 0.0562]" in typeset
    line = full.splitlines()[20]
    assert line.startswith("Proposed,CIFAR-10,Skewed,0.5,0.") and line.endswith(
        ",1,1,0,,0.9202 ± 0.0562"
    )


def test_fedhenns_accuracies_are_in_percent_and_unrecorded_global_ones_are_not_recorded(
    tmp_path,
):
    one = run(tmp_path / "a", "fedhenn/homogeneous-cifar10-100-2.toml", {"rounds": 1}, 0.5)
    assert "| 50.00 |" in table([one], layout="fedhenn-2", format="markdown")
    assert "| 50.00 |" in table([one], layout="fedhenn-3", format="markdown")
    assert "| not recorded |" in table([one], layout="fedhenn-1", format="markdown")


def test_traffic_is_exact_and_has_its_unit(tmp_path):
    one = run(tmp_path / "a", "fedclassavg-cifar10-dirichlet.toml", {"rounds": 1}, 0.5, up=20520)
    _, _, heads, down, up, *_ = table([one], layout="fedclassavg-5").splitlines()
    assert heads.split("  ")[0] == "Comm. cost"
    assert down.split()[0] == "down" and up.split() == [
        "up",
        *["no", "run"] * 2,
        "20,520",
        "B",
        "(20.5",
        "kB)",
    ]


def test_runs_without_a_cell_and_differences_in_one_cell_are_listed(tmp_path):
    one = run(tmp_path / "a", "table3/fedavg-cifar10-20.toml", {"rounds": 1}, 0.5)
    other = run(
        tmp_path / "b", "table3/fedavg-cifar10-20.toml", {"rounds": 1, "data.alpha": 0.1}, 0.5
    )
    assert f"1 of 2 runs have no cell in this table: {other}" in table(
        [one, other], layout="fedclassavg-3"
    )
    with pytest.raises(ConfigError, match="none of 1 runs has a cell in this table"):
        table([one], layout="fedclassavg-2")
    more = run(
        tmp_path / "c",
        "table3/fedavg-cifar10-20.toml",
        {"rounds": 1, "local.lr": 0.1, "seed": 1},
        0.5,
    )
    with pytest.raises(
        ConfigError, match=r"FedAvg, CIFAR-10, 20 clients differ in local.lr: 0.0001 and 0.1"
    ):
        table([one, more], layout="fedclassavg-3")


def test_a_layout_has_its_own_rows_columns_and_numbers(tmp_path):
    with pytest.raises(ConfigError, match="--value, but --layout fedhenn-1 has its own"):
        table([tmp_path], layout="fedhenn-1", value="best")
    with pytest.raises(ConfigError, match="no layout 'fedhen-1'; did you mean 'fedhenn-1'"):
        table([tmp_path], layout="fedhen-1")
    with pytest.raises(ConfigError, match="no --layout names"):
        table([tmp_path], paper=True)
