"""The README does what it says: each of its commands runs, and its example too; sweeps in short.
The batch script is that of the page on clusters.
"""

import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hpcfed import cli
from tests import forked, limits
from tests.mpirun import ROOT, environment

TEXT = (ROOT / "README.md").read_text()
CLUSTER = (ROOT / "docs/pages/cluster.md").read_text()
FEW = "HPCFED_DATA__TRAIN_LIMIT=300"  # examples, for the tests' sake
# of sweeps: the last value of a field counts; two seeds, because they are compared
SHORT = "--algorithm.name local,fedavg --seed 0,1 --rounds 1"
SMALL_MACHINE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """Where a user stands: her own algorithm and table in files."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "smoothed.py").write_text(blocks("python")[0])
    names = re.search(r"^age,.*,sick$", TEXT, re.MULTILINE)[0]
    with open(folder / "heart.csv", "w") as table:
        print(names, file=table)
        for i in range(80):
            who = ("cleveland", "hungarian", "switzerland", "va")[i // 2 % 4]
            gap = "" if i % 9 == 0 else i % 4
            print(*range(i, i + 12), gap, who, ("no", "yes")[i % 2], sep=",", file=table)
    return folder


def shell(command: str, folder: Path, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a line as a user would, with this Python's commands first on the path: as forks
    (`tests.forked`) or, if `fresh`, as they are installed.
    """
    places = [Path(sys.executable).parent, os.environ["PATH"]]
    if not fresh:
        places.insert(0, Path(forked.python()).parent)
    path = os.pathsep.join(map(str, places))
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
        elif command == "hpcfed run":
            done = shell(f"{FEW} HPCFED_ROUNDS=1 {command}", desk, fresh=True)
        elif "hpcfed sweep" in command:
            done = shell(f"{FEW} {command} {SHORT}", desk)
        else:
            done = shell(f"{FEW} {command}", desk)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_batch_script_runs(desk):
    script = blocks("slurm", CLUSTER)[0].replace(
        "mpirun ", "mpirun -np 2 "
    )  # under Slurm, its tasks are the ranks
    done = shell(script, desk)
    assert done.returncode == 0, done.stderr
    assert (desk / "runs/cluster/results.h5").exists()


def test_the_table_is_that_of_the_committed_runs(tmp_path: Path, capsys):
    with tarfile.open(ROOT / "benchmarks/results/heart/runs.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    runs = sorted(tmp_path.glob("*.h5"))
    assert len(runs) == 9 and cli.main(["table", *map(str, runs)]) == 0
    [table] = re.findall(r"^```\n(Test accuracy.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    expected = table.splitlines()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(expected[0]) and sorted(printed[2:]) == sorted(expected[2:])


def test_pictures_and_files_that_the_readme_names_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
