"""A Slurm of our own for tests: one controller and several node daemons on this machine, all of
this user.

Each "node" is a slurmd with a name, a port and a spool folder of its own. Keys, sockets and logs
lie in one folder; nothing of a Slurm that the machine may have is touched. All daemons end with the
process that starts them.
"""

import getpass
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests import limits

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "setpriv")
PACKAGES = ("slurm-wlm", "munge")  # of Debian
# where Debian has daemons; it is not on every user's path
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
CONFIG = """
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{send_user_signal}
DebugFlags=NO_CONF_HASH
ReturnToService=2
SlurmUser={user}
SlurmdUser={user}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=5
NodeName=DEFAULT CPUs=8 RealMemory=4000 Gres=gpu:4 State=UNKNOWN
NodeName=n[1-{most}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{before}] Feature=1080ti
NodeName=n{nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={last} Feature=2080ti
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2
"""


class Cluster:
    """A running cluster. env: with which its commands reach it."""

    def __init__(self, folder: Path, nodes: int = 3):
        self.folder, self.nodes, self.daemons = folder, nodes, ExitStack()
        self.env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}

    def __enter__(self) -> "Cluster":
        try:
            return self.up()
        except BaseException:
            self.daemons.close()
            raise

    def up(self) -> "Cluster":
        """Start all daemons, and wait until the nodes are there."""
        (self.folder / "state").mkdir(parents=True)
        for name, text in self.files().items():
            (self.folder / name).touch(mode=0o600)
            (self.folder / name).write_text(text)
        self.start(
            "munged",
            "--foreground",
            "--force",
            f"--socket={self.folder}/munge.sock",
            "--origin=127.0.0.1",
            *(
                f"--{name}-file={self.folder}/munge.{name}"
                for name in ("key", "pid", "log", "seed")
            ),
        )
        self.until(lambda: (self.folder / "munge.sock").exists(), "munged does not start")
        self.start("slurmctld", "-D")
        for n in range(1, self.nodes + 1):
            (self.folder / f"spool.n{n}").mkdir()
            self.start("slurmd", "-D", "-N", f"n{n}")
        self.until(
            lambda: (
                self.call("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.split()
                == [str(self.nodes)]
            ),
            "nodes do not come up",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.call("scancel", "--user", getpass.getuser())
        self.until(lambda: not self.call("squeue", "-h").stdout, "jobs do not end")
        self.daemons.close()

    def files(self) -> dict[str, str]:
        """What the daemons read, by name."""
        host, port, n = socket.gethostname().split(".")[0], free_ports(self.nodes + 1), self.nodes
        # Debian 12's; it touches no cgroup with the plugin for v1
        old = " 22." in self.call("slurmd", "-V").stdout
        preempt = (
            "SlurmctldParameters=preempt_send_user_signal"
            if old
            else "PreemptParameters=send_user_signal"
        )
        text = CONFIG.format(
            send_user_signal=preempt,
            host=host,
            user=getpass.getuser(),
            folder=self.folder,
            port=port,
            nodes=n,
            most=n - 1,
            first=port + 1,
            before=port + n - 1,
            last=port + n,
        )
        gpus = "".join(
            f"Name=gpu File=/dev/{file}\n" for file in ("null", "zero", "full", "random")
        )  # none is opened
        cgroup = f"CgroupPlugin={'cgroup/v1' if old else 'disabled'}\n"
        return {
            "munge.key": secrets.token_hex(64),
            "slurm.conf": text,
            "cgroup.conf": cgroup,
            "gres.conf": gpus,
        }

    def start(self, *words: str) -> None:
        """Start a daemon that ends with this process, or with the cluster."""
        with open(self.folder / "daemons.log", "ab") as log:
            daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.env,
                start_new_session=True,
            )
        self.daemons.callback(end, daemon)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One of Slurm's commands; see its returncode."""
        return subprocess.run(
            words, env=os.environ | self.env, capture_output=True, text=True, timeout=limits.COMMAND
        )

    def until(self, true: Callable[[], bool], complaint: str, seconds: float = 60) -> None:
        """Wait for something, at most so many seconds; then RuntimeError, with the daemons' last
        words.
        """
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{complaint}\n{(self.folder / 'daemons.log').read_text()[-3000:]}"
                )
            time.sleep(0.3)  # for each look takes a process


def end(daemon: subprocess.Popen[bytes]) -> None:
    """Ask a daemon to end, and kill it if it does not: slurmctld does not listen while it
    starts.
    """
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def free_ports(n: int) -> int:
    """The first of n ports in a row that nobody listens on now."""
    for start in range(20000, 30000, 50):
        with ExitStack() as stack:
            try:
                for port in range(start, start + n):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return start
    raise RuntimeError("no free ports from 20000 to 30000")
