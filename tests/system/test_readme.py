"""The README does what it says: each of its commands runs, its example and its batch script too;
sweeps in short.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from hpcfed import cli
from hpcfed.algorithms import ALGORITHMS
from hpcfed.config.methods import by_kind
from tests import limits
from tests.mpirun import ROOT, environment

TEXT = (ROOT / "README.md").read_text()
FEW = "HPCFED_DATA__TRAIN_LIMIT=300"  # examples, for the tests' sake
# of sweeps: what is given last counts; the one of digits is compared over seeds
SHORT = {"runs/try": "--algorithm.name local,fedclassavg --seed 0,1 --rounds 1"}
SHORTER = "--algorithm.name local,lgfedavg --seed 0 --rounds 1"
SMALL_MACHINE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """Where a user stands: the jobs beside her, her own algorithm, table and images in files."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "jobs").symlink_to(ROOT / "jobs")
    (folder / "smoothed.py").write_text(blocks("python")[0])
    names = re.search(r"^age,.*,sick$", TEXT, re.MULTILINE)[0]
    with open(folder / "heart.csv", "w") as table:
        print(names, file=table)
        for i in range(80):
            who = ("cleveland", "hungarian", "switzerland", "va")[i // 2 % 4]
            gap = "" if i % 9 == 0 else i % 4
            print(*range(i, i + 12), gap, who, ("no", "yes")[i % 2], sep=",", file=table)
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        for i in range(50):
            Image.new("RGB", (40 + i % 3, 40), (i, 100, 5 * (kind == "dog"))).save(
                folder / "photos" / kind / f"{i}.png"
            )
    return folder


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a user would, with this Python's commands first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = environment({**SMALL_MACHINE, "PATH": path})
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=limits.COMMAND,
    )


def test_every_command_of_the_readme_works(desk):
    for command in commands():
        if command.startswith("make "):  # this test is part of one of them
            make = shlex.split(command.partition(" && ")[0])
            done = subprocess.run([*make, "-n"], cwd=ROOT, capture_output=True, text=True)
        elif "-np 15" in command:  # the paper's own setting: checked with data that need no
            # download, not run, and on one rank (15 of them are in test_many_processes)
            alone = command.replace("mpirun -np 15 ", "")
            done = shell(f"{alone} --dry-run --data.name digits", desk)
        elif command == "hpcfed run":
            done = shell(f"{FEW} HPCFED_ROUNDS=1 {command}", desk)
        elif "hpcfed sweep" in command:
            short = next((s for name, s in SHORT.items() if command.endswith(name)), SHORTER)
            done = shell(f"{FEW} {command} {short}", desk)
        else:
            done = shell(f"{FEW} {command}", desk)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_batch_script_runs(desk):
    script = blocks("slurm")[0].replace(
        "mpirun ", "mpirun -np 2 "
    )  # under Slurm, its tasks are the ranks
    done = shell(script, desk)
    assert done.returncode == 0, done.stderr
    assert (desk / "runs/cluster/results.h5").exists()


def test_the_job_file_of_the_readme_is_a_valid_job(desk):
    from hpcfed.config.load import load

    (desk / "common.toml").write_text("")
    (desk / "job.toml").write_text(blocks("toml")[0])
    job = load([str(desk / "job.toml")], environ={})
    assert (job.rounds, job.algorithm.rho, job.models.mix[3]) == (300, 0.1, "alexnet")


def test_the_readme_counts_the_methods():
    assert f"**{len(ALGORITHMS)} methods**" in TEXT


def test_the_readmes_table_of_methods_is_that_of_the_registry():
    rows = re.findall(r"^\| ([^|]+) \| (`.+) \|$", TEXT, re.MULTILINE)
    named = {title: set(re.findall(r"`([a-z0-9]+)`", names)) for title, names in rows}
    assert {title: named.get(title) for title in by_kind()} == {
        title: set(entries) for title, entries in by_kind().items()
    }


@pytest.mark.parametrize("place, name, number", [(0, "heart", 9), (1, "try", 12)])
def test_the_tables_are_those_of_the_committed_runs(place, name, number, capsys):
    runs = sorted((ROOT / "benchmarks/results" / name).glob("*.h5"))
    assert len(runs) == number and cli.main(["table", *map(str, runs)]) == 0
    tables = re.findall(r"^```\n(Test accuracy.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    shown = tables[place].splitlines()
    made = capsys.readouterr().out.splitlines()
    assert made[0].startswith(shown[0]) and sorted(made[2:]) == sorted(shown[2:])


def test_pictures_and_files_that_the_readme_names_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
