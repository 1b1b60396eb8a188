"""The lab is what it claims to be, and leaves nothing behind; and the classes are right in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.lab.hosts import PREFIX, Lab, Link, missing
from tests.integration.processes import PATIENCE_S, Processes, until

pytestmark = [pytest.mark.dist, pytest.mark.root, pytest.mark.slow]

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
PEER = """\
import json, socket, sys, time
role, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "serve":
    with socket.create_server((address, 7000)) as server:
        print("ready", flush=True)
        peer, _ = server.accept()
        left = size
        while left:
            left -= len(peer.recv(min(left, 1 << 20)))
        peer.sendall(b"x")
        peer.recv(1)
else:
    begin = time.perf_counter()
    try:
        peer = socket.create_connection((address, 7000), timeout=3)
    except OSError:
        sys.exit(9)
    connected = time.perf_counter()
    peer.sendall(bytes(size))
    peer.recv(1)
    print(json.dumps({"connect_s": connected - begin, "send_s": time.perf_counter() - connected}))
"""
WHO = """\
import json, socket
from ddlprof.collect.job.environment import node_identity
print(json.dumps([socket.gethostname(), node_identity()]))
"""


@pytest.fixture(autouse=True)
def possible() -> None:
    skip_unless_possible(Link())


def skip_unless_possible(link: Link) -> Link:
    """Not every kernel can delay and lose packets."""
    if reason := missing(link):
        pytest.skip(reason)
    return link


def namespaces(pid: int | None = None) -> set[str]:
    """Of the labs of a process, this one by default: others may have theirs."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-{pid or os.getpid()}-")}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def output_of(lab: Lab, host: int, code: str) -> Any:
    process = lab.start(host, [sys.executable, "-c", code], stdout=subprocess.PIPE, PYTHONPATH=str(SCRIPTS.parent))
    return json.loads(process.communicate(timeout=PATIENCE_S)[0])


def send(lab: Lab, size: int) -> dict[str, float]:
    """Host 1 sends to host 0; empty if it cannot."""
    words = [lab.address(0), str(size)]
    server = lab.start(0, [sys.executable, "-c", PEER, "serve", *words], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    client = lab.start(1, [sys.executable, "-c", PEER, "connect", *words], stdout=subprocess.PIPE)
    text = client.communicate(timeout=PATIENCE_S)[0]
    server.kill()
    server.communicate()
    assert client.returncode in (0, 9)
    return dict(json.loads(text)) if text else {}


def test_hosts_are_machines_of_their_own() -> None:
    with Lab(3) as lab:
        known = [output_of(lab, host, WHO) for host in range(3)]
    assert [name for name, _ in known] == ["lab-0", "lab-1", "lab-2"]
    assert len({identity for _, identity in known}) == 3


def test_rate_limits_what_a_host_sends() -> None:
    size, bits_per_s = 4_000_000, 50e6
    with Lab(2, Link(rate="50mbit")) as lab:
        shaped_s = send(lab, size)["send_s"]
    burst = 256 * 1024
    assert shaped_s >= 0.95 * 8 * (size - burst) / bits_per_s


def test_delay_holds_up_both_ways() -> None:
    with Lab(2, skip_unless_possible(Link(rate="50mbit", delay="40ms"))) as lab:
        assert send(lab, 1)["connect_s"] >= 2 * 0.040


def test_jitter_alone_is_a_delay_that_varies() -> None:
    with Lab(2, skip_unless_possible(Link(jitter="30ms"))) as lab:
        times = [send(lab, 1)["connect_s"] for _ in range(4)]
    assert max(times) - min(times) > 0.001


def test_what_is_lost_does_not_arrive() -> None:
    with Lab(2, skip_unless_possible(Link(loss="100%"))) as lab:
        assert send(lab, 1) == {}


def test_a_host_cut_off_reaches_itself_alone() -> None:
    with Lab(2) as lab:
        assert send(lab, 1)
        lab.cut_off(1)
        assert send(lab, 1) == {}
        assert output_of(lab, 1, WHO)[0] == "lab-1"


def test_a_failure_inside_leaves_nothing() -> None:
    # A process that ignores being asked, and its child that has left the process group.
    code = "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nos.fork() or os.setsid()\ntime.sleep(600)"
    lab = Lab(2)

    def fail() -> None:
        with lab:
            assert len(namespaces()) == 3
            lab.start(1, [sys.executable, "-c", code])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not namespaces()


def test_options_that_tc_refuses_leave_nothing() -> None:
    with pytest.raises(OSError, match="tc"):
        Lab(2, Link(rate="fast")).__enter__()
    assert not namespaces()


@pytest.fixture
def running(processes: Processes, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], set[str], list[int]]]:
    """The command of the lab with a job that does not end: its process, its namespaces, its ranks."""
    script = tmp_path / "endless.py"
    script.write_text("import os, time\nopen(f'rank-{os.environ[\"RANK\"]}', 'w').write(str(os.getpid()))\n"
                      "time.sleep(600)\n")  # fmt: skip
    command = [sys.executable, str(SCRIPTS / "lab" / "hosts.py"), "--rate", "100mbit", "--", "plain", str(script)]
    process = processes.start(*command, cold=True)
    files = [tmp_path / f"rank-{rank}" for rank in range(2)]
    until(lambda: all(file.exists() and file.read_text() for file in files), process)
    pids = [int(file.read_text()) for file in files]
    yield process, namespaces(process.pid), pids
    process.kill()
    process.wait(PATIENCE_S)
    with Lab(1):
        pass


Running = tuple[subprocess.Popen[bytes], set[str], list[int]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_a_lab_that_is_stopped_leaves_nothing(number: signal.Signals, running: Running) -> None:
    process, made, ranks = running
    assert len(made) == 3  # two hosts and the switch
    process.send_signal(number)
    assert process.wait(timeout=PATIENCE_S) != 0
    assert not namespaces(process.pid)
    assert not any(map(alive, ranks))


def test_the_next_lab_removes_what_a_killed_one_left(running: Running) -> None:
    process, made, ranks = running
    with Lab(1):
        assert made == namespaces(process.pid)  # the other one is alive
    process.kill()
    process.wait()
    assert made == namespaces(process.pid)
    assert all(map(alive, ranks))
    with Lab(1):
        assert not namespaces(process.pid)
        assert not any(map(alive, ranks))


@pytest.mark.timeout(600)
def test_classes_against_the_difference_of_unprofiled_runs(processes: Processes) -> None:
    """That the benchmark runs to its end: how right they are is what it says on a machine that does nothing else."""
    done = processes.run(sys.executable, str(SCRIPTS / "bench" / "network.py"), "--quick", text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert all(name in done.stdout for name in ("interconnect", "network", "straggler"))
