"""The jobs of FedHeNN's tables: complete, in its setting, and small with the file that lies over
it.
"""

import re
from pathlib import Path

from hpcfed.config.job import Job
from hpcfed.config.load import load
from hpcfed.storage.fields import flat
from tests.rows import for_each
from tests.unit.test_jobs import overlays

JOBS = Path(__file__).parents[2] / "jobs/fedhenn"
FULL = sorted(path.name for path in JOBS.glob("*.toml") if not path.name.startswith("small"))
SCALE = {
    "algorithm.head_epochs",
    "rounds",
    "data.train_limit",
    "data.public",
    "local.epochs",
    "local.lr",
    "evaluate.every",
}
HEAD = re.compile(
    r"# (Tables? \d(?: and \d)?|Section 3\.4|Figure 3), (.+), ((?:CIFAR|Sentiment)[^:]*): "
    r"(\d\d\.\d+.*|global .+, personal .+|a curve without numbers)\n"
)
SETTINGS = {
    ("cifar10", 100, 2),
    ("cifar10", 100, 5),
    ("cifar10", 500, 2),
    ("cifar10", 500, 5),
    ("cifar100", 100, 20),
    ("sentiment140", 100, 2),
}
ROWS = {
    "FedAvg": "1",
    "FedProx": "1",
    "FedRep": "2",
    "FedHeNN homogeneous": "12",
    "FedHeNN heterogeneous": "2",
}


def job(name: str, *overlays: str) -> Job:
    return load([str(JOBS / name), *overlays], environ={})


def cell(name: str) -> tuple[str, ...]:
    """Where in the paper, row, column and number, from the first line of the file."""
    head = HEAD.match((JOBS / name).read_text())
    assert head, f"{name}: the first line names no table, row, column and number"
    return head.groups()


def setting(job: Job) -> tuple[str, int, int]:
    return job.data.name, job.clients, job.data.classes_per_client


def test_tables_1_and_2_are_complete():
    for row, tables in ROWS.items():
        names = [
            name for name in FULL if cell(name)[1] == row and cell(name)[0].startswith("Table")
        ]
        assert {setting(job(name)) for name in names} == SETTINGS and len(names) == len(SETTINGS), (
            row
        )
        assert {"".join(re.findall(r"\d", cell(name)[0])) for name in names} == {tables}, row


def test_table_3_figure_3_and_procrustes_are_there():
    rbf = [job(name) for name in FULL if cell(name)[0] == "Table 3"]
    assert {(paper_job.data.name, paper_job.algorithm.kernel) for paper_job in rbf} == {
        (data, "rbf") for data in ("cifar10", "cifar100", "sentiment140")
    }
    halved = [job(name) for name in FULL if cell(name)[0] == "Figure 3"]
    assert {(paper_job.algorithm.setting, paper_job.data.halve) for paper_job in halved} == {
        (s, share) for s in ("homogeneous", "heterogeneous") for share in (0.2, 0.4, 0.6, 0.8)
    }
    assert [job(name).algorithm.distance for name in FULL if cell(name)[0] == "Section 3.4"] == [
        "procrustes"
    ]


@for_each(FULL)
def test_a_job_is_the_papers_setting(name: str):
    paper_job, (where, row, _, _) = job(name), cell(name)
    method = paper_job.algorithm
    epochs = method.head_epochs + method.body_epochs if row == "FedRep" else paper_job.local.epochs
    assert (paper_job.rounds, paper_job.participation, epochs, paper_job.local.optimiser) == (
        200,
        0.1,
        20,
        "sgd",
    )
    assert paper_job.data.partition == "classes" and paper_job.local.momentum > 0
    assert paper_job.evaluate.received == where.startswith(("Table 1", "Tables 1"))
    text, several = paper_job.data.name == "sentiment140", "heterogeneous" in row
    assert paper_job.models.assign == ("random" if several else "round-robin")
    assert len(paper_job.models.mix) == ((2 if text else 5) if several else 1)
    if row.startswith("FedHeNN"):
        assert (paper_job.algorithm.eta0, paper_job.algorithm.rad_size) == (
            0.01 if text else 0.001,
            5000,
        )
        assert paper_job.algorithm.setting == ("heterogeneous" if several else "homogeneous")
        assert paper_job.data.public >= paper_job.algorithm.rad_size


def test_each_job_is_named_once_among_those_that_overlays_make_small():
    assert sorted(Path(name).name for name, _ in overlays(JOBS / "README.md")) == FULL


def test_with_its_overlay_each_job_is_small_and_differs_in_scale_alone():
    wrong = {}
    for name, over in overlays(JOBS / "README.md"):
        full, small = flat(job(name).plain()), flat(job(name, *over).plain())
        others = {field for field in full if full[field] != small[field]} - SCALE
        large = small["rounds"] > 20 or small["data.train_limit"] > 4000
        epochs = small["local.epochs"] + small.get("algorithm.head_epochs", 0)
        if others or large or epochs > 3:
            wrong[name] = others, small
    assert wrong == {}


def test_the_table_of_the_jobs_agrees_with_the_jobs():
    line = re.compile(r"^\| \[(.+)\]\((.+)\) \| (.+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
    rows = line.findall((JOBS / "README.md").read_text())
    assert sorted(row[0] for row in rows) == FULL
    assert all(link == name and tuple(rest) == cell(name) for name, link, *rest in rows)


def test_the_authors_preset_is_that_of_fedhenns_code(tmp_path: Path):
    path = tmp_path / "job.toml"
    path.write_text('preset = "authors"\n[algorithm]\nname = "fedhenn"\n[data]\npublic = 100\n')
    loaded = load([str(path)], environ={})
    assert (loaded.algorithm.eta0, loaded.algorithm.rad_size, loaded.algorithm.mean_over) == (
        0.01,
        1000,
        "previous",
    )
    assert (loaded.local.optimiser, loaded.local.momentum, loaded.local.batch) == ("sgd", 0.5, 10)
    assert (
        not loaded.models.relu_head and loaded.data.sizes == "equal"
    )  # those are what FedClassAvg's authors have
