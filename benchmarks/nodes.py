"""Two nodes on this machine: network namespaces, each on one core, joined by a link of known
latency and bandwidth.

Bandwidth is that of tc's token bucket (tbf). Without latency the link is a pair of the kernel's
veth devices. Latency would be tc's netem, which not every kernel has: here a process in between
holds every frame for so long, and takes a little of the cores from what is measured. Needs root,
`ip`, `tc`, `unshare` and /dev/net/tun.

    python benchmarks/nodes.py relay SECONDS     # what runs in between
"""

from __future__ import annotations

import fcntl
import os
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Self

sys.path.insert(0, str(Path(__file__).parents[1]))  # to be run from anywhere

from benchmarks.launch import mpirun

NAMES, ENDS = (
    ("hpcfed-node0", "hpcfed-node1"),
    ("hpcfed0", "hpcfed1"),
)  # of nodes, and of their link
MTU, BURST = 16_000, 32_768  # bytes; the bucket lets so much pass at once
TUNSETIFF, TAP, PLAIN = 0x400454CA, 0x0002, 0x1000
AGENT = """#!/bin/sh
# mpirun calls this as it would ssh: NODE COMMAND...
node=$1; shift; core=${node#hpcfed-node}
inner='hostname "$0"; exec taskset -c "$1" sh -c "$2"'
exec ip netns exec "$node" unshare --uts sh -c "$inner" "$node" "$core" "$*"
"""


def missing() -> str:
    """What is not here to make nodes with; "": nothing."""
    tools = [tool for tool in ("ip", "tc", "unshare", "taskset") if not shutil.which(tool)]
    cores = [] if len(os.sched_getaffinity(0)) > 1 else ["a second core"]
    return ", ".join(
        [
            *tools,
            *cores,
            *(["root"] if os.geteuid() else []),
            *([] if Path("/dev/net/tun").exists() else ["/dev/net/tun"]),
        ]
    )


class Nodes:
    """The two nodes, as long as the block lasts. latency: seconds, one way.  bandwidth: bytes a
    second, each way.
    """

    def __init__(self, latency: float, bandwidth: float):
        self.latency, self.bandwidth = latency, bandwidth
        self.relay: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            return self.begin()
        except BaseException:
            self.end()
            raise

    def begin(self) -> Self:
        """Make nodes and link; what a run that was killed has left goes first."""
        clear()
        self.folder = tempfile.TemporaryDirectory(prefix="nodes-")
        self.agent = Path(self.folder.name) / "agent"
        self.agent.write_text(AGENT)
        self.agent.chmod(0o755)
        self.join()
        for i, (name, end) in enumerate(zip(NAMES, ENDS, strict=True)):
            for line in (
                f"ip netns add {name}",
                f"ip link set {end} netns {name}",
                f"ip -n {name} link set {end} mtu {MTU} up",
                f"ip -n {name} addr add 10.77.0.{i + 1}/24 dev {end}",
                f"ip -n {name} link set lo up",
                f"tc -n {name} qdisc add dev {end} root tbf rate {8 * self.bandwidth:.0f}bit "
                f"burst {BURST} latency 1s",
                f"ip netns exec {name} sysctl -qw net.ipv4.tcp_slow_start_after_idle=0",
            ):
                subprocess.run(shlex.split(line), check=True)
        return self

    def join(self) -> None:
        """Make both ends of the link."""
        if not self.latency:
            subprocess.run(
                ["ip", "link", "add", ENDS[0], "type", "veth", "peer", "name", ENDS[1]], check=True
            )
            return
        self.relay = subprocess.Popen(
            [sys.executable, __file__, "relay", str(self.latency)], stdout=subprocess.PIPE
        )
        assert self.relay.stdout is not None
        if self.relay.stdout.readline() != b"ready\n":
            raise SystemExit("no TAP devices here: /dev/net/tun, and root, are needed")

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End what runs on the nodes, and take them away; the relay first, for its devices go with
        them.
        """
        if self.relay:
            self.relay.kill()
            self.relay.wait()
        clear()
        self.folder.cleanup()

    def launcher(self, each: int) -> str:
        """The command that starts this number of ranks on each node, with {ranks} for all of
        them.
        """
        hosts = ",".join(f"{name}:{each}" for name in NAMES)
        words = (
            f'--allow-run-as-root --host {hosts} --map-by slot --bind-to none -np {{ranks}} "$@"'
        )
        start = f"taskset -c 0 env PRTE_MCA_plm_ssh_agent={self.agent} {mpirun()}"
        inner = f"hostname {NAMES[0]}; exec {start} {words}"
        return f"ip netns exec {NAMES[0]} unshare --uts sh -c {shlex.quote(inner)} sh"


def clear() -> None:
    """End what runs on nodes of these names, and take them away."""
    done = subprocess.run(
        shlex.split("ip netns list"), capture_output=True, text=True, check=True
    ).stdout.split()
    for name in set(NAMES) & set(done):
        left = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True
        ).stdout.split()
        for pid in left:
            os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], check=False)


def relay(latency: float) -> None:
    """Carry frames between two TAP devices, each with this delay in seconds."""
    ends = [tap(name) for name in ENDS]
    print("ready", flush=True)
    on_the_way: deque[tuple[float, int, bytes]] = deque()  # when it arrives, where
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # ranks keep the cores busy
    while True:
        wait = max(0.0, on_the_way[0][0] - monotonic()) if on_the_way else None
        for end in select.select(ends, [], [], wait)[0]:
            on_the_way.append(
                (monotonic() + latency, ends[1 - ends.index(end)], os.read(end, 1 << 16))
            )
        while on_the_way and on_the_way[0][0] <= monotonic():
            _, to, frame = on_the_way.popleft()
            with suppress(OSError):  # the other end is not up yet
                os.write(to, frame)


def tap(name: str) -> int:
    """A TAP device of this name, which lasts as long as this process."""
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), TAP | PLAIN))
    return end


if __name__ == "__main__":
    relay(float(sys.argv[2]))
