"""What the README and `slurm/` say of Slurm is what happens on one."""

import re
import shlex

import pytest

from hpcfed.storage import results
from tests.mpirun import ROOT
from tests.slurm.conftest import LIMIT, Desk
from tests.system.test_readme import blocks

pytestmark = pytest.mark.timeout(3 * LIMIT)
TINY = shlex.split("--clients 4 --models.mix mlp --models.d 16 --data.train_limit 120")
READY = sorted((ROOT / "slurm").glob("*.sbatch"))
COMMANDS = [shlex.split(line) for line in blocks("bash")[0].splitlines()]


def test_every_command_of_the_readme_works(desk: Desk):
    ids = []
    for _, _, *words in (command for command in COMMANDS if command[:2] == ["hpcfed", "submit"]):
        if "--dry-run" in words:
            assert "module load openmpi" in desk.call("hpcfed", "submit", *words)
        else:
            ids += desk.submit(*words, *TINY)
    for job in ids:
        desk.done(job)
    runs = {path.parent.name: results.load(path).rounds for path in (desk.folder / "runs").glob("*/results.h5")}
    seeds = {f"fedclassavg-digits-dirichlet-seed{seed}": 2 for seed in (1, 2)}
    assert runs == {"queued": 4, "long": 4} | seeds
    assert COMMANDS[-1] == ["scancel", "--batch", "--signal=TERM", "JOB"]  # test_slurm_queue.py does it


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_slurm_takes_every_ready_script(desk, path):
    nodes = min(3, int(re.search(r"--nodes=(\d+)", path.read_text())[1]))
    desk.call("sbatch", "--test-only", f"--nodes={nodes}", "--constraint=", str(path))


def test_the_script_of_the_papers_cluster_runs_on_nodes_of_two_kinds(desk):
    fields = [*TINY, "--data.name", "digits", "--rounds", "1"]
    options = ["--parsable", "--nodes=3", "--constraint=[1080ti*2&2080ti*1]"]
    job = desk.call("sbatch", *options, str(ROOT / "slurm/paper.sbatch"), *fields).strip()
    assert desk.done(job)["NodeList"] == "n[1-3]"
    assert results.load(desk.folder / "runs/paper").header["ranks"] == 3
