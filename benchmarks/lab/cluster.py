"""Hosts as network namespaces of one machine, each behind a link of limited rate.

    switch namespace: a bridge        host k: its own namespace, eth "e0" = 10.77.0.(k+1), a veth pair to the bridge
    link: tbf on the host's egress    a host's ranks: pinned to a core, GLOO_SOCKET_IFNAME=e0, MASTER_ADDR of host 0

Two ranks of one host talk over its loopback, unlimited. Everything is made here and removed here, also after an interrupt; the
addresses exist inside these namespaces only. Needs root and iproute2; the kernel here has tbf and no netem, so latency is that
of the machine. Source: the lab of the design; Linux `ip-netns(8)`, `tc-tbf(8)`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

SUBNET = "10.77.0"
PORT = 29_511


class LabError(RuntimeError):
    """The emulated cluster cannot be made, or a rank failed."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that exists.

    Attributes:
        prefix: begins the names of its namespaces.
        hosts: number of hosts.
        ranks_per_host: ranks that share a host.
    """

    prefix: str
    hosts: int
    ranks_per_host: int

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.hosts * self.ranks_per_host

    def host(self, index: int) -> str:
        """Name of a host's namespace."""
        return f"{self.prefix}-h{index}"

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None, timeout_s: float = 900.0) -> str:
        """Run a command on every rank; returns what rank 0 printed on stdout.

        Raises:
            LabError: a rank failed or did not end in time; all others are killed.
        """
        ranks = [self._start(rank, command, env or {}) for rank in range(self.size)]
        try:
            out, _ = ranks[0].communicate(timeout=timeout_s)
            codes = [rank.wait(timeout=30) for rank in ranks]
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{' '.join(command)} did not end within {error.timeout:g} s") from error
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
        if any(codes):
            raise LabError(f"{' '.join(command)}: exit codes of the ranks: {codes}")
        return out

    def _start(self, rank: int, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        host, local = divmod(rank, self.ranks_per_host)
        core = rank % (os.cpu_count() or 1)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "MASTER_ADDR": f"{SUBNET}.1",
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": "e0",
            **env,
        }
        return subprocess.Popen(
            ["ip", "netns", "exec", self.host(host), "taskset", "-c", str(core), *command],
            env=environment,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )


@contextlib.contextmanager
def cluster(hosts: int, rate: str, ranks_per_host: int = 1) -> Iterator[Cluster]:
    """Make a cluster, and remove it again.

    Args:
        hosts: number of hosts, 1 to 200.
        rate: rate of each link as tc writes it, for example "800mbit"; "" is no limit.
        ranks_per_host: ranks on each host.

    Raises:
        LabError: not root, iproute2 is missing, or the kernel refuses.
    """
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "tc", "taskset")):
        raise LabError("the lab needs root, iproute2 and util-linux (apt-get install iproute2 util-linux)")
    made = Cluster(f"gwlab{os.getpid()}", hosts, ranks_per_host)
    switch = f"{made.prefix}-sw"
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for index in range(hosts):
            _add_host(made, switch, index, rate)
        yield made
    finally:
        for name in (*(made.host(index) for index in range(hosts)), switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _add_host(made: Cluster, switch: str, index: int, rate: str) -> None:
    host, port = made.host(index), f"p{index}"
    _ip("netns", "add", host)
    _ip("-n", host, "link", "add", "e0", "type", "veth", "peer", "name", port, "netns", switch)
    _ip("-n", switch, "link", "set", port, "master", "br0", "up")
    _ip("-n", host, "addr", "add", f"{SUBNET}.{index + 1}/24", "dev", "e0")
    _ip("-n", host, "link", "set", "e0", "up")
    _ip("-n", host, "link", "set", "lo", "up")
    if rate:
        set_rate(made, index, rate, "add")


def set_rate(made: Cluster, index: int, rate: str, how: str = "change") -> None:
    """Set, or change while it runs, the rate of one host's link."""
    limits = ("root", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms")
    _call("tc", "-n", made.host(index), "qdisc", how, "dev", "e0", *limits)


def _ip(*arguments: str) -> None:
    _call("ip", *arguments)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
