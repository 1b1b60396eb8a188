"""What the kernel says of real processes: how they ended, whether they are stopped, and what they use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from ddlprof.collect.hang import processes
from tests.integration.processes import until

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs Linux")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def state(pid: int) -> str:
    return next((each.ended or each.state for each in processes.child_states() if each.pid == pid), "")


def test_a_child_that_was_killed_is_told_before_anybody_waits_for_it(child: subprocess.Popen[bytes]) -> None:
    until(lambda: state(child.pid) in ("R", "S", "D"))
    child.kill()
    until(lambda: state(child.pid) not in ("R", "S", "D"))
    assert state(child.pid) == "killed by SIGKILL"
    assert processes.process_state(child.pid) == "zombie"


def test_a_stopped_process(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGSTOP)
    until(lambda: processes.process_state(child.pid) == "stopped")
    child.send_signal(signal.SIGCONT)
    until(lambda: processes.process_state(child.pid) == "")
    child.kill()
    child.wait()
    assert processes.process_state(child.pid) == "gone"


def test_words_for_exit_codes() -> None:
    assert processes.how_ended(3 << 8) == "ended with exit code 3"
    assert processes.how_ended(9) == "killed by SIGKILL"


def test_a_busy_child_counts() -> None:
    before = processes.usage()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        until(lambda: processes.usage().cpu_s > before.cpu_s + 0.2)
        busy.kill()


def test_reading_counts() -> None:
    before = processes.usage()
    with open("/dev/zero", "rb", buffering=0) as zero:
        zero.read(1 << 22)
    assert processes.usage().io_bytes >= before.io_bytes + (1 << 22)


def test_where_a_thread_waits() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait, daemon=True)
    thread.start()
    until(lambda: processes.thread_state(thread.native_id)[0] == "S")
    event.set()
    thread.join()
    assert processes.thread_state(None) == ("", "")


def test_no_disk_of_a_test_is_full() -> None:
    assert processes.full_disks([os.getcwd(), "/does/not/exist", ""]) == []
