"""Several hosts with shaped links on one machine: `python -m scripts.lab.hosts --hosts 2 --rate 400mbit train.py`.

A host is a network namespace with a host name of its own; a switch in another namespace joins them. Each host's uplink
has a rate, delay, jitter and loss (`tc`), for what it sends. One launcher (torch's elastic one, through `ddlprof run`)
is started a host. Needs root and iproute2. Whatever happens, processes and namespaces are gone at the end; what a lab
left behind that was itself killed is removed by the next one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType

PREFIX = "ddlprof-lab"
NETWORK = "10.77.0"
MTU = "9000"
"""The packet size that clouds use between machines. With 1500 the work on single packets takes half of two cores at
400 Mbit/s."""
MASTER_PORT = 29577

_NUMBERS = count()


@dataclass(frozen=True)
class Link:
    """Every host's uplink, in the units of `tc`; an empty rate is unshaped."""

    rate: str = ""
    delay: str = ""
    jitter: str = ""
    loss: str = ""

    def commands(self) -> list[list[str]]:
        """Arguments of `tc qdisc add dev eth0` that shape it."""
        commands = []
        parent = ["root", "handle", "1:"]
        if self.delay or self.jitter or self.loss:
            netem = ["netem", "limit", "100000"]
            netem += ["delay", self.delay or "0ms", *([self.jitter] if self.jitter else [])]
            netem += ["loss", self.loss] if self.loss else []
            commands.append([*parent, *netem])
            parent = ["parent", "1:1", "handle", "10:"]
        if self.rate:
            commands.append([*parent, "tbf", "rate", self.rate, "burst", "64kb", "latency", "200ms"])
        return commands


def missing(link: Link | None = None) -> str | None:
    """Why no lab with such a link can be built here; None if one can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "the lab needs root"
    lacking = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if lacking:
        return f"the lab needs {', '.join(lacking)} (iproute2, util-linux)"
    if error := _error("unshare", "--net", "--uts", "true"):
        return f"namespaces are not allowed here: {error}"
    for command in (link or Link()).commands()[:1]:
        if error := _error("unshare", "--net", "tc", "qdisc", "add", "dev", "lo", *command):
            return f"no such link can be made here: {error} (tc {' '.join(command[3:])})"
    return None


class Lab:
    """`with Lab(hosts=2, link=Link(rate="400mbit")) as lab: lab.start(0, ["python", "train.py"])`."""

    def __init__(self, hosts: int, link: Link | None = None) -> None:
        self.hosts = hosts
        self.link = link or Link()
        self.name = f"{PREFIX}-{os.getpid()}-{next(_NUMBERS)}-{_started(os.getpid())}"
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of the hosts; the switch's has the lab's own name."""
        return [f"{self.name}-{host}" for host in range(self.hosts)]

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return f"{NETWORK}.{host + 1}"

    def __enter__(self) -> Lab:
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def _build(self) -> None:
        _run("ip", "netns", "add", self.name)
        _in(self.name, "ip", "link", "add", "switch", "type", "bridge")
        _in(self.name, "ip", "link", "set", "switch", "up")
        for host, namespace in enumerate(self.namespaces):
            _run("ip", "netns", "add", namespace)
            port = f"port{host}"
            peer = ["peer", "name", "eth0", "mtu", MTU, "netns", namespace]
            _in(self.name, "ip", "link", "add", port, "mtu", MTU, "type", "veth", *peer)
            _in(self.name, "ip", "link", "set", port, "master", "switch", "up")
            _in(namespace, "ip", "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _in(namespace, "ip", "link", "set", "eth0", "up")
            _in(namespace, "ip", "link", "set", "lo", "up")
            for command in self.link.commands():
                _in(namespace, "tc", "qdisc", "add", "dev", "eth0", *command)

    def start(
        self,
        host: int,
        command: Sequence[str],
        stdout: int | None = None,
        stderr: int | None = None,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Starts a command on a host."""
        renamed = ["unshare", "--uts", "sh", "-c", f'hostname lab-{host} && exec "$@"', "sh", *command]
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespaces[host], *renamed],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0", **environment},
            stdout=stdout,
            stderr=stderr,
        )
        self._running.append(process)
        return process

    def cut_off(self, host: int) -> None:
        """Pulls the cable out of the switch: processes of the host still reach each other."""
        _in(self.name, "ip", "link", "set", f"port{host}", "down")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Kills what runs on the hosts and removes them."""
        for process in self._running:
            process.kill()  # one that is only about to enter its namespace is not found there
        for namespace in (*self.namespaces, self.name):
            _remove(namespace)
        for process in self._running:
            process.wait()


def launchers(hosts: int, ranks: Sequence[int], words: Sequence[str], master: str) -> list[list[str]]:
    """The command of each host: `ddlprof run` if `words` begin with it, else torch's launcher; same script on all."""
    commands = []
    for host in range(hosts):
        group = [
            "--nnodes", str(hosts), "--node-rank", str(host), "--nproc-per-node", str(ranks[host % len(ranks)]),
            "--master-addr", master, "--master-port", str(MASTER_PORT),
        ]  # fmt: skip
        if words[0] == "plain":
            commands.append([sys.executable, "-m", "torch.distributed.run", *group, *words[1:]])
        else:
            commands.append([sys.executable, "-m", "ddlprof", "run", *group, *words])
    return commands


def leave_in_order() -> None:
    """Asked to end, this process raises SystemExit, so that labs are removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def remove_leftovers() -> None:
    """Removes the namespaces of labs whose process is gone, and what runs in them."""
    for line in _run("ip", "netns", "list").splitlines():
        match = re.match(rf"{PREFIX}-(\d+)-\d+-(\d+)", line)
        if match and match[2] != _started(int(match[1])):
            _remove(line.split()[0])


def _started(pid: int) -> str:
    """When a process began, in ticks since boot: with its number, an identity. Empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _remove(namespace: str) -> None:
    """Kills until nobody is left: a process may start another while it is being killed."""
    while pids := subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, check=False).stdout.split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _error(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _in(namespace: str, *command: str) -> None:
    _run("ip", "netns", "exec", namespace, *command)


def main() -> int:
    """The exit code is the worst of the hosts'."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", default="1", help="ranks a host, e.g. 2 or 1,3")
    for name, example in (("rate", "400mbit"), ("delay", "0.1ms"), ("jitter", "0.05ms"), ("loss", "0.1%%")):
        parser.add_argument(f"--{name}", default="", help=f"of each uplink, e.g. {example}")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="options of ddlprof run, or `plain`; SCRIPT; arguments")
    options = parser.parse_args()
    options.words = options.words[options.words[:1] == ["--"] :]
    if not options.words:
        parser.error("name a script")
    link = Link(options.rate, options.delay, options.jitter, options.loss)
    reason = missing(link)
    if reason:
        sys.exit(f"lab: {reason}")
    leave_in_order()
    ranks = [int(number) for number in options.ranks.split(",")]
    with Lab(options.hosts, link) as lab:
        commands = launchers(options.hosts, ranks, options.words, lab.address(0))
        running = [lab.start(host, command) for host, command in enumerate(commands)]
        return max(abs(process.wait()) for process in running)


if __name__ == "__main__":
    sys.exit(main())
