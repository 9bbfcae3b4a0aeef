"""Where a user stands who submits jobs to the virtual cluster, and the tiny job that the tests run
there.
"""

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from hpcfed import cli
from tests import forked
from tests.mpirun import ROOT, environment
from tests.slurm import gated
from tests.slurm.cluster import Cluster
from tests.system.test_readme import CLUSTER, SMALL_MACHINE, blocks

LIMIT = 300  # seconds for anything to happen: a crowded machine may need minutes
JOB = shlex.split(
    "--algorithm.name tests.slurm.gated:Gated --clients 6 --models.mix mlp --models.d 16 "
    "--data.train_limit 180 "
    "--rounds 3 --checkpoint.every 1 --local.keep_optimiser"
)
# of the page on clusters
COMMANDS = [shlex.split(line) for line in blocks("bash", CLUSTER)[0].splitlines()]
QUEUED, CHAIN, ARRAY, LARGE, STOP = COMMANDS
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


class Desk:
    """Where a user stands: the jobs beside her, this Python's commands first on the path. The runs
    of her jobs are forks (`tests.forked`).
    """

    def __init__(self, cluster: Cluster, folder: Path):
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        (folder / "jobs").symlink_to(ROOT / "jobs")
        commands = [str(Path(python).parent) for python in (forked.python(), sys.executable)]
        path = os.pathsep.join([*commands, cluster.env["PATH"]])
        # mpirun puts its own folder before this path, unless it is asked to pass that on
        with_path = {"PATH": path, "OMPI_MCA_mca_base_env_list": "PATH"}
        self.env = environment({**SMALL_MACHINE, **cluster.env, **with_path})
        self.submission = ""  # output of the last submission

    def open(self) -> None:
        """Let the runs of this desk go on."""
        (self.folder / gated.OPEN).touch()

    def call(self, *words: str) -> str:
        """What a command prints; fails unless its status is 0."""
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=LIMIT
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def hpcfed(self, *words: str) -> str:
        """What one of our own commands prints. It is called in this process, as if it were one of
        the desk's: to import torch takes longer than a command.
        """
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
            patch.chdir(self.folder)
            for name in os.environ.keys() - self.env.keys():
                patch.delenv(name)
            for name, value in self.env.items():
                patch.setenv(name, value)
            patch.setattr(sys, "path", [*sys.path])
            patch.setattr(sys, "argv", ["hpcfed", *words])
            patch.setattr(sys, "executable", forked.python())  # which a script would put before
            assert cli.main(words) == 0, printed.getvalue()
        return printed.getvalue()

    def submit(self, *words: str) -> list[str]:
        """Call `hpcfed submit`; the ids of the jobs."""
        self.submission = self.hpcfed("submit", *words)
        return self.submission.splitlines()[-1].partition("--signal=TERM ")[2].split()

    def until(self, true: Callable[[], bool], what: str) -> None:
        try:
            self.cluster.until(true, what, LIMIT)
        except RuntimeError as error:
            error.add_note(self.printed())
            raise

    def waiting(self, job: str) -> None:
        """Until the job's run stands in the middle of round 2."""
        sign, what = self.folder / gated.WAITING, f"job {job} does not come to round 2"
        self.until(lambda: sign.exists() or self.show(job)["JobState"] in OVER, what)
        assert sign.exists(), f"{what}\n{self.printed()}"
        sign.unlink()

    def show(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job, by its own names."""
        words = self.call("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def ended(self, job: str) -> dict[str, str]:
        """What Slurm says of a job when it is over."""
        self.until(lambda: self.show(job)["JobState"] in OVER, f"job {job} does not end")
        return self.show(job)

    def done(self, job: str) -> dict[str, str]:
        """As `ended`; fails unless it has done all that it should."""
        end = self.ended(job)
        assert end["ExitCode"] == "0:0", f"{end}\n{self.printed()}"
        return end

    def printed(self) -> str:
        """What the jobs of this desk have printed."""
        return "\n".join(
            f"== {path.name}\n{path.read_text()}"
            for path in sorted(self.folder.glob("slurm-*.out"))
        )
