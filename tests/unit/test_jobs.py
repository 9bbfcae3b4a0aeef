"""The jobs: one for each cell of the paper's tables, each valid, and small with the files that lie
over it.
"""

import re
import subprocess
from pathlib import Path

import pytest

from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.storage.fields import flat
from tests.rows import for_each

JOBS = Path(__file__).parents[2] / "jobs"
OTHER = {
    "common",
    "methods",
    "fedhenn",
    "natural",
}  # folders of jobs that are not cells of the tables
FULL = sorted(
    str(p.relative_to(JOBS))
    for p in JOBS.rglob("*.toml")
    if not OTHER & set(p.parts) and not p.name.startswith("small")
)
SETS, CELLS = 3, {2: 4 * 2, 3: 6 * 2, 4: 4}  # rows x columns of each table and data set
LOCAL = {
    "cifar10": (1e-4, 0.1),
    "fashion-mnist": (6e-4, 0.4662),
    "emnist-letters": (5e-4, 0.1),
}  # table 1: lr, rho
SCALE = {
    "rounds",
    "models.mix",
    "data.train_limit",
    "data.public",
    "local.lr",
    "local.batch",
    "algorithm.public",
    "algorithm.ramp",
}  # what an overlay may change
HEAD = re.compile(
    r"# Table (\d), (.+), ((?:CIFAR-10|Fashion-MNIST|EMNIST Letters)[^:]*): (0\.\d+(?: \+- "
    r"0\.\d+)?)\n"
)
NATURAL = sorted(path.stem for path in (JOBS / "natural").glob("*.toml"))


def job(name: str, *overlays: str) -> Job:
    return load([str(JOBS / name), *overlays], environ={})


def overlays(readme: Path) -> list[tuple[str, list[str]]]:
    """Each job that the table of a README says how to make small, with the files that do so; a
    shell expands the patterns.
    """
    lines = re.findall(r"^\| `(jobs/.+)` \| `(jobs/.+)` \|$", readme.read_text(), re.MULTILINE)
    jobs = []
    for patterns, files in lines:
        output = subprocess.run(
            ["bash", "-O", "failglob", "-c", f"echo {patterns}"],
            cwd=JOBS.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        over = [str(JOBS.parent / file) for file in files.split()]
        jobs += [(str(JOBS.parent / name), over) for name in output.stdout.split()]
    return jobs


def cell(name: str) -> tuple[str, ...]:
    """Table, row, column and number of the paper, from the first line of the file."""
    head = HEAD.match((JOBS / name).read_text())
    assert head, f"{name}: the first line names no table, row, column and number"
    return head.groups()


def test_each_table_is_complete_and_has_no_cell_twice():
    cells = [cell(name)[:3] for name in FULL]
    assert len(set(cells)) == len(cells)
    assert {int(t): sum(c[0] == t for c in cells) for t in "234"} == {
        t: SETS * n for t, n in CELLS.items()
    }


@for_each(FULL)
def test_a_job_is_the_papers_setting(name):
    paper_job, (table, row, column, _) = job(name), cell(name)
    lr, rho = LOCAL[paper_job.data.name]
    local = (lr, 64, "adam")
    if paper_job.algorithm.name == "ktpfl":
        local = (
            (0.01, 32, "sgd")
            if "+weight" in row
            else (0.02 if "CIFAR" in column else 0.01, 128, "sgd")
        )
    assert (paper_job.local.lr, paper_job.local.batch, paper_job.local.optimiser) == local
    assert (paper_job.rounds, paper_job.local.epochs) == (300, 1)
    assert (paper_job.clients, paper_job.participation) == (
        (100, 0.1) if "100 clients" in column else (20, 1.0)
    )
    assert (
        paper_job.data.partition == ("classes" if "Skewed" in column else "dirichlet")
        and paper_job.data.alpha == 0.5
    )
    if paper_job.algorithm.name == "fedclassavg":
        assert paper_job.algorithm.rho == (0.0 if row in ("CA", "+CL") else rho)
        assert paper_job.algorithm.contrastive == (row not in ("CA", "+PR"))
        assert paper_job.algorithm.share == ("all" if "+weight" in row else "head")
    if paper_job.algorithm.name == "ktpfl":
        assert paper_job.algorithm.ramp == 20 and paper_job.algorithm.share == (
            "weights" if "+weight" in row else "predictions"
        )
    cifar, alone = "CIFAR-10" in column, paper_job.algorithm.name == "local" or row in ("CA", "+PR")
    assert paper_job.local.augment == ("crop-flip" if cifar and alone else "auto")
    one = ("resnet18",) if row.startswith("Proposed") else ("cnn",)
    four = ("resnet18", "shufflenetv2", "googlenet", "alexnet")
    assert paper_job.models.mix == (one if table == "3" else four)


def test_each_job_is_named_once_among_those_that_overlays_make_small():
    names = [str(Path(name).relative_to(JOBS)) for name, _ in overlays(JOBS / "README.md")]
    assert sorted(names) == FULL


def test_with_its_overlays_each_job_is_small_and_differs_in_scale_alone():
    wrong = {}
    for name, over in overlays(JOBS / "README.md"):
        full, small = flat(job(name).plain()), flat(job(name, *over).plain())
        others = {field for field in full if full[field] != small[field]} - SCALE
        large = small["data.train_limit"] > 10_000 or small["rounds"] > 50
        one = [len(fields["models.mix"]) == 1 for fields in (full, small)]
        ramps = small.get("algorithm.ramp", 1) > 3 or (small["data.public"] or 0) > 300
        if others or large or ramps or one[0] != one[1]:
            wrong[name] = others, small
    assert wrong == {}


def test_the_sweep_of_a_table_takes_no_overlay():
    commands = re.findall(r"`hpcfed sweep (.+?) --out", (JOBS / "README.md").read_text())
    assert len(commands) >= 7
    for words in commands:
        output = subprocess.run(
            ["bash", "-c", f"echo {words}"], cwd=JOBS.parent, capture_output=True, text=True
        ).stdout
        assert ".toml" in output and "/small" not in output, words


def test_the_table_of_the_jobs_agrees_with_the_jobs():
    line = re.compile(r"^\| \[(.+)\]\((.+)\) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
    rows = line.findall((JOBS / "README.md").read_text())
    assert sorted(row[0] for row in rows) == FULL
    assert all(
        (link, row, column, number) == (name, *cell(name)[1:])
        for name, link, row, column, number in rows
    )


@pytest.mark.parametrize("name", NATURAL)
def test_a_job_of_natural_clients_is_named_for_its_data(name: str):
    natural = job(f"natural/{name}.toml")
    assert natural.data.name == name and natural.algorithm.name == "fedavg"
