"""Which launcher starts one world: the real mpirun does; others hang, fail, or start N worlds of
one rank.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from hpcfed.cli import main
from hpcfed.comm import mpi_library
from hpcfed.launch.doctor import launcher_cache, launchers
from hpcfed.launch.doctor.launchers import PROBE, candidates, starters
from hpcfed.launch.doctor.probe import MARK
from hpcfed.launch.doctor.timeout import Outcome, run_with_timeout, split
from hpcfed.launch.doctor.trials import Launcher, Trial, explain_trial, launcher_finding
from tests import limits
from tests.mpirun import environment, launcher

APART = """#!/bin/sh
# a launcher of another MPI library: each process is a world of its own
"{python}" -m hpcfed.launch.doctor.probe
"{python}" -m hpcfed.launch.doctor.probe
"""


@pytest.fixture
def bin(tmp_path, monkeypatch) -> Path:
    """A folder for launchers, the only one on the PATH beside the system's."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(launchers, "plugins", lambda: [])
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path


def script(path: Path, text: str) -> str:
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def tried(path: str, limit: float = limits.COMMAND) -> Trial:
    return launchers.trial(Launcher(path, (path, "-np", "2")), 2, limit)


def said(*worlds: dict, status: int | None = 0, err: str = "") -> Trial:
    out = "".join(f"a library's own line\n{MARK}{json.dumps(world)}\n" for world in worlds)
    return Trial(Launcher("srun --mpi=pmix", ("srun",)), 2, Outcome(status, out, err))


def world(size: int, total: int | None = None) -> dict:
    return {
        "size": size,
        "sum": total or size,
        "ranks": [{"node": rank % 2} for rank in range(size)],
    }


def test_the_real_mpirun_forms_one_world(bin):
    found = launchers.trial(Launcher("mpirun", (*launcher(), "-np", "2")), 2, limits.COMMAND)
    assert found.works and len(found.worlds[0]["ranks"]) == 2, found.outcome
    assert launcher_finding(found, needed=True).status == "ok"
    assert "MPI" in found.worlds[0]["library"]["name"]
    assert all(rank["cores"] and rank["gpus"] == [] for rank in found.worlds[0]["ranks"])


def test_a_launcher_of_another_library_starts_two_worlds_of_one_rank(bin):
    found = tried(script(bin / "mpirun", APART))
    assert not found.works
    text, advice = explain_trial(found)
    assert text == "2 worlds of 1 rank" and "mpi4py" in advice


def test_so_it_is_where_the_launcher_told_of_two_but_the_library_connects_one():
    alone = {"error": "the launcher started 2 processes (PMI_SIZE), but MPI connects 1: ..."}
    assert explain_trial(said(alone, alone))[0] == "2 worlds of 1 rank"


@pytest.mark.parametrize(
    "text", ["sleep 600 & sleep 600", "trap '' TERM\nwhile :; do sleep 600; done"]
)
def test_a_launcher_that_hangs_is_ended_with_its_processes(bin, monkeypatch, text):
    monkeypatch.setattr("hpcfed.launch.doctor.timeout.GRACE", 0.2)
    found = tried(script(bin / "mpirun", f"#!/bin/sh\necho $$ > {bin}/pid\n{text}\n"), limit=0.5)
    assert found.outcome.status is None and not found.works
    assert explain_trial(found)[0] == "did not end in time"
    group = int((bin / "pid").read_text())
    while living(
        group
    ):  # what is killed takes a moment to be gone; what is not, outlives the test's time limit
        os.sched_yield()


def living(group: int) -> list[str]:
    """The processes of a group, but for dead ones that nobody has asked for yet."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, pgrp, *_ = path.read_text().rpartition(")")[2].split()
            found += [state] if int(pgrp) == group and state not in "ZX" else []
    return found


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("There are not enough slots available in the system", "OVERSUBSCRIBE"),
        ("prterun has detected an attempt to run as root.", "OMPI_ALLOW_RUN_AS_ROOT=1"),
        (
            "srun: error: Unable to allocate resources: Invalid account or account/partition",
            "--account",
        ),
        (
            "srun: error: Unable to allocate resources: Requested nodes are busy",
            "inside an allocation",
        ),
        ("python: Error while finding module: No module named hpcfed", "on all nodes"),
        ("Open MPI was not built with SLURM's PMI support", "another --mpi, or mpirun"),
    ],
)
def test_a_launcher_that_fails_is_told_with_what_helps(text, advice):
    found = launcher_finding(said(status=1, err=f"-----\n{text}\n"), needed=True)
    assert found.status == "wrong" and "status 1" in found.found and text[:40] in found.found
    assert advice in found.advice


def test_what_fails_is_a_mere_warning_where_another_works():
    assert launcher_finding(said(status=1), needed=False).status == "warning"


def test_a_wrong_sum_and_a_missing_rank_are_no_world():
    assert explain_trial(said(world(2, total=1)))[0] == "a sum of 2 ones gave 1"
    assert explain_trial(said(world(1)))[0] == "2 ranks were started, 1 met"
    assert not said(world(2), status=9).works


def test_a_missing_command_is_an_outcome(tmp_path):
    assert run_with_timeout([str(tmp_path / "absent")], 5).status == 127


def test_srun_is_tried_first_and_mpirun_gets_nodes_of_its_own_outside_of_an_allocation():
    found = candidates(4, ["mpirun"], ["none", "pmi2", "pmix"], ["--partition=gpu"], False, 30)
    assert [c.name for c in found] == ["srun --mpi=pmix", "srun --mpi=pmi2", "mpirun"]
    assert found[0].words == ("srun", "--mpi=pmix", "--immediate=30", "-n", "4", "--partition=gpu")
    assert found[2].words == (
        "salloc",
        "--quiet",
        "--immediate=30",
        "-n",
        "4",
        "--partition=gpu",
        "mpirun",
        "-np",
        "4",
    )
    assert candidates(4, ["mpirun"], ["pmix"], [], True, 30)[1].words == ("mpirun", "-np", "4")


def test_a_launcher_whose_path_has_a_space_is_named_as_a_shell_takes_it():
    path = "/opt/my mpi/bin/mpirun"
    [found] = candidates(2, [path], [], [], True, 30)
    assert split("launcher", found.name) == [path] and found.words[0] == path


def test_the_mpi_librarys_path_may_hold_spaces(tmp_path, monkeypatch):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 42      /opt/other/libmpicxx/x\n"
        "7f00-7f01 r-xp 00000000 08:01 42      /opt/my mpi/lib/libmpi.so.40\n"
    )
    monkeypatch.setattr(mpi_library, "MAPS", maps)
    assert mpi_library.library_path("libmpi") == "/opt/my mpi/lib/libmpi.so.40"


def test_mpirun_has_its_short_name_where_the_path_finds_it(tmp_path):
    for folder in ("path", "python"):
        (tmp_path / folder).mkdir()
        script(tmp_path / folder / "mpirun", "#!/bin/sh\n")
    python = str(tmp_path / "python/python")
    assert starters(python, str(tmp_path / "path")) == ["mpirun", str(tmp_path / "python/mpirun")]
    assert starters(python, str(tmp_path / "python")) == ["mpirun"]
    assert starters(python, str(tmp_path)) == [str(tmp_path / "python/mpirun")]


@pytest.mark.parametrize(
    "listed",
    [
        "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\n",
        "srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: pmix\n",
    ],
)
def test_the_plugins_are_those_that_srun_lists(bin, monkeypatch, listed):
    monkeypatch.undo()
    script(bin / "sinfo", "#!/bin/sh\nexit 0\n")
    script(bin / "srun", f"#!/bin/sh\ncat >&2 <<END\n{listed}END\n")
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert launchers.plugins() == ["none", "pmi2", "pmix"]
    script(bin / "sinfo", "#!/bin/sh\nexit 1\n")
    assert launchers.plugins() == [] and "pmix" in launchers.list_srun_plugins()


def test_what_works_is_known_on_that_cluster_and_to_that_python_alone(bin, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(bin / "cache"))

    def on(cluster: str) -> None:
        script(
            bin / "scontrol",
            f"#!/bin/sh\necho 'AuthType = x'\necho 'ClusterName             = {cluster}'\n",
        )

    on("one")
    assert launcher_cache.read_launcher() is None
    launcher_cache.keep("srun --mpi=pmix")
    on("two")
    assert launcher_cache.read_launcher() is None
    launcher_cache.keep("mpirun")
    on("one")
    assert launcher_cache.read_launcher() == "srun --mpi=pmix"
    launcher_cache.keep(None)  # nothing works any more
    assert launcher_cache.read_launcher() is None
    on("two")
    assert launcher_cache.read_launcher() == "mpirun"
    monkeypatch.setattr(sys, "prefix", "another")
    assert launcher_cache.read_launcher() is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}'])
def test_a_spoilt_note_of_what_works_is_as_none(tmp_path, monkeypatch, text):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(launcher_cache, "here", lambda: "a")
    (tmp_path / "hpcfed").mkdir()
    launcher_cache.file().write_text(text)
    assert launcher_cache.read_launcher() is None
    launcher_cache.keep("mpirun")
    assert launcher_cache.read_launcher() == "mpirun"


def test_the_probe_runs_with_this_python():
    assert PROBE == (sys.executable, "-m", "hpcfed.launch.doctor.probe")


@pytest.mark.parametrize(
    "command",
    [
        ["sweep", "--seed", "0,1", "--out", "s", "--launcher"],
        ["submit", "--dry-run", "--launcher"],
        ["doctor", "--slurm"],
    ],
)
def test_what_no_shell_could_split_is_one_message(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*command, "srun '-n"]) == 2
    assert (
        f"{command[-1]} srun '-n: no closing quotation; give it as a shell takes it"
        in capsys.readouterr().err
    )
