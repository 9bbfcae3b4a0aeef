"""The scripts of the page on clusters and of `slurm/`, on a real Slurm. Its other commands:
test_slurm_queue.py.
"""

import re
import shlex

import pytest

from hpcfed.storage import results
from tests.mpirun import ROOT
from tests.slurm.desk import LARGE, LIMIT

pytestmark = pytest.mark.timeout(3 * LIMIT)
TINY = shlex.split("--clients 4 --models.mix mlp --models.d 16 --data.train_limit 120")
READY = sorted((ROOT / "slurm").glob("*.sbatch"))


def test_the_script_of_a_large_job_is_printed_and_taken(desk):
    script = desk.folder / "script"
    script.write_text(desk.call(*LARGE))
    assert "\nmodule load openmpi\n" in script.read_text()
    desk.call("sbatch", "--test-only", "--nodes=3", str(script))


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
