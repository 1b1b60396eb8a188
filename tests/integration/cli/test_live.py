"""`ddlprof run --live` and `ddlprof watch` with real trainings: the view shows them, and they know nothing of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.unit.live.runs import GrowingRun
from tests.unit.live.terminal import Terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal, and /proc for processes")

Ddlprof = Callable[..., subprocess.CompletedProcess[bytes]]
BAR = """
for number in range(200):
    sys.stderr.write(f"\\r{number}/200")
    sys.stderr.flush()
    if number % 20 == 0:
        sys.stderr.write("\\n")
        print("said", number, flush=True)
    time.sleep(0.01)
sys.stderr.write("\\n")
"""
WAIT_FOR_GO = """
import os
while not os.path.exists("go"):
    time.sleep(0.01)
"""


def views_of(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "--beside" in words and words[-1] == str(directory):
            found.append(process)
    return found


def until(condition: Callable[[], object], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def start(words: list[str], directory: Path, **where: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ddlprof", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=directory, env=environment, text=True, **where)  # type: ignore[call-overload,no-any-return]


class OnATerminal:
    """A command on a pseudo-terminal, and what a person sees there."""

    def __init__(self, words: list[str], directory: Path) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.terminal = Terminal(100, 30)
        self._main, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        command = [sys.executable, "-m", "ddlprof", *words]
        environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=there, stdout=there, stderr=there, cwd=directory, env=environment, start_new_session=True
        )
        os.close(there)
        os.set_blocking(self._main, False)

    def read(self) -> Terminal:
        while True:
            try:
                data = os.read(self._main, 1 << 16)
            except OSError:  # nothing now, or nobody has it open any more
                return self.terminal
            if not data:
                return self.terminal
            self.terminal.feed(data.decode())

    def sees(self, text: str) -> bool:
        return text in " ".join(" ".join(self.read().rows).split())


def test_the_status_is_below_what_the_script_prints(write_training: Callable[..., str], tmp_path: Path) -> None:
    write_training(400, BAR)
    job = OnATerminal(["run", "--live", "--no-calibrate", "--out", "run", "train.py"], tmp_path)
    assert until(lambda: job.sees("steps/s"))
    assert any("steps/s" in row for row in job.terminal.rows[-3:])
    assert job.terminal.bottom == 30 - 1 - 3
    assert until(lambda: job.read() and job.process.poll() is not None)
    terminal = job.read()
    assert (job.process.returncode, terminal.top, terminal.bottom) == (0, 0, 29)
    seen = terminal.seen
    assert [line for line in seen if line.startswith("said")] == [f"said {n}" for n in range(0, 200, 20)]
    assert "199/200" in seen
    assert any(line.startswith("Verdict") for line in seen)  # the card comes after the view
    assert not any("steps/s" in line for line in seen)
    assert views_of(tmp_path / "run") == []


def test_output_children_and_exit_code_are_those_of_python(
    write_training: Callable[..., str],
    execute: Callable[..., subprocess.CompletedProcess[bytes]],
    ddlprof: Ddlprof,
    tmp_path: Path,
) -> None:
    """Also for a script that waits for its children: the view is none of them."""
    write_training(60, "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    sys.exit(3)\n")
    python = execute(sys.executable, "train.py")
    live = ddlprof("run", "--live", "--no-calibrate", "--out", "run", "train.py")
    assert python.stdout == live.stdout  # the sum of the parameters is in it
    assert live.returncode == python.returncode == 3
    assert re.search(rb"^ddlprof \d\d:\d\d:\d\d ", live.stderr, re.MULTILINE)  # no terminal: plain lines
    assert b"\x1b" not in live.stderr
    assert views_of(tmp_path / "run") == []


def test_ctrl_c_ends_the_training_and_the_view(write_training: Callable[..., str], tmp_path: Path) -> None:
    write_training(100_000)
    job = OnATerminal(["run", "--live", "--no-calibrate", "--out", "run", "train.py"], tmp_path)
    assert until(lambda: job.sees("steps/s"))
    os.killpg(job.process.pid, signal.SIGINT)  # what a terminal does
    assert until(lambda: job.read() and job.process.poll() is not None)
    assert job.process.returncode == -signal.SIGINT
    assert any(line.startswith("KeyboardInterrupt") for line in job.read().seen)
    assert job.terminal.bottom == 29
    assert views_of(tmp_path / "run") == []


def test_the_training_goes_on_without_its_view(write_training: Callable[..., str], tmp_path: Path) -> None:
    write_training(300, WAIT_FOR_GO)
    job = OnATerminal(["run", "--live", "--no-calibrate", "--out", "run", "train.py"], tmp_path)
    assert until(lambda: job.sees("steps/s") and views_of(tmp_path / "run"))
    views_of(tmp_path / "run")[0].send_signal(signal.SIGKILL)
    (tmp_path / "go").touch()
    assert until(lambda: job.read() and job.process.poll() is not None)
    assert job.process.returncode == 0
    assert job.read().bottom == 29  # the training gave the terminal back
    assert any(line.startswith("trained 300") for line in job.terminal.seen)


def test_the_view_ends_when_the_training_is_killed(tmp_path: Path) -> None:
    """Of a process that only sleeps, beside a run that somebody else has written."""
    training = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    GrowingRun(tmp_path / "run", pid=training.pid).begin().train(40)
    view = OnATerminal(["watch", "--beside", str(training.pid), "--", str(tmp_path / "run")], tmp_path)
    assert until(lambda: view.sees("steps/s"))
    assert view.terminal.bottom == 30 - 1 - 3
    view.process.send_signal(signal.SIGINT)  # of the terminal: it is the training's
    training.kill()
    assert until(lambda: view.process.poll() is not None)  # the training is a zombie, as nobody has asked for it
    assert training.wait() == -signal.SIGKILL
    assert view.read().bottom == 29
    assert not view.sees("steps/s")


@pytest.mark.dist
def test_one_view_shows_all_ranks(write_training: Callable[..., str], tmp_path: Path) -> None:
    write_training(2000)
    words = ["run", "--live", "--no-calibrate", "--out", "run", "--nproc-per-node", "2", "train.py", "--distributed"]
    job = OnATerminal(words, tmp_path)
    assert until(lambda: job.sees("2 ranks"))
    assert len(views_of(tmp_path / "run")) == 1
    assert until(lambda: job.read() and job.process.poll() is not None)
    assert job.process.returncode == 0
    assert views_of(tmp_path / "run") == []
    assert sum(line.startswith("trained 2000") for line in job.terminal.seen) == 2


def test_watching_a_run_that_is_killed(write_training: Callable[..., str], tmp_path: Path) -> None:
    write_training(100_000)
    training = start(["run", "--quiet", "--no-calibrate", "--out", "run", "train.py"], tmp_path)
    lines: list[str] = []
    with start(["watch", "run", "--wait", "1m", "--interval", "0.5"], tmp_path, stderr=subprocess.PIPE) as watching:
        assert watching.stderr is not None
        for line in watching.stderr:
            lines.append(line)
            if "steps/s" in line and training.poll() is None:
                training.kill()
                training.wait()
    assert watching.returncode == 0
    assert lines[0] == "ddlprof: waiting for run\n"
    assert re.fullmatch(r"ddlprof: the run was killed after [\d,]+ steps .*; next: ddlprof report run\n", lines[-1])


def test_leaving_the_view_leaves_the_training_alone(write_training: Callable[..., str], tmp_path: Path) -> None:
    write_training(400, WAIT_FOR_GO)
    training = start(["run", "--quiet", "--no-calibrate", "--out", "run", "train.py"], tmp_path, stdout=subprocess.PIPE)
    watching = OnATerminal(["watch", "run", "--wait", "1m"], tmp_path)
    written = b""

    def seen() -> bool:
        nonlocal written
        try:
            written += os.read(watching._main, 1 << 16)
        except OSError:
            return False
        return b"steps/s" in written

    assert until(seen)
    assert b"\x1b[?1049h" in written
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait() == 130
    seen()
    assert b"\x1b[?1049l" in written
    (tmp_path / "go").touch()
    output, _ = training.communicate()
    assert training.returncode == 0
    assert output.startswith("trained 400")
