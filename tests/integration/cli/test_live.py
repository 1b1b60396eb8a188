"""`ddlprof run --live` and `ddlprof watch` with real trainings: the view shows them, and they know nothing of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.processes import PATIENCE_S, Processes, until
from tests.unit.live.runs import GrowingRun
from tests.unit.live.terminal import Terminal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal, and /proc for processes")

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


def start(processes: Processes, *words: str, **where: Any) -> subprocess.Popen[str]:
    return processes.start(sys.executable, "-m", "ddlprof", *words, env={"OMP_NUM_THREADS": "1"}, text=True, **where)


class OnATerminal:
    """A command on a pseudo-terminal, and what a person sees there."""

    def __init__(self, processes: Processes, *words: str) -> None:
        import fcntl
        import pty
        import struct
        import termios

        self.terminal = Terminal(100, 30)
        self._main, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = processes.start(
            sys.executable, "-m", "ddlprof", *words, stdin=there, stdout=there, stderr=there,
            env={"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
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

    def await_sight(self, text: str) -> None:
        until(lambda: self.sees(text), self.process)

    def await_end(self, run: Path) -> None:
        """Of the process and of the view of its run."""
        until(lambda: self.read() and self.process.poll() is not None)
        until(lambda: not views_of(run))
        self.read()


@pytest.fixture
def live(processes: Processes) -> Callable[..., OnATerminal]:
    """`ddlprof run --live` of the training on a terminal."""
    words = ["run", "--live", "--no-calibrate", "--out", "run"]
    return lambda *more: OnATerminal(processes, *words, *more)


@pytest.mark.slow
def test_the_status_is_below_what_the_script_prints(
    live: Callable[..., OnATerminal], write_training: Callable[..., str], tmp_path: Path
) -> None:
    job = live(write_training(400, WAIT_FOR_GO + BAR))
    job.await_sight("steps/s")
    assert any("steps/s" in row for row in job.terminal.rows[-3:])
    assert job.terminal.bottom == 30 - 1 - 3
    (tmp_path / "go").touch()
    job.await_end(tmp_path / "run")
    terminal = job.terminal
    assert (job.process.returncode, terminal.top, terminal.bottom) == (0, 0, 29)
    seen = terminal.seen
    assert [line for line in seen if line.startswith("said")] == [f"said {n}" for n in range(0, 200, 20)]
    assert "199/200" in seen
    assert any(line.startswith("Verdict") for line in seen)  # the card comes after the view
    assert not any("steps/s" in line for line in seen)


@pytest.mark.slow
def test_output_children_and_exit_code_are_those_of_python(
    processes: Processes, write_training: Callable[..., str], tmp_path: Path
) -> None:
    """Also for a script that waits for its children: the view is none of them."""
    waits = "import os\ntry:\n    os.wait()\nexcept ChildProcessError:\n    sys.exit(3)\n"
    script = write_training(60, WAIT_FOR_GO + waits)
    (tmp_path / "go").touch()
    python = processes.run(sys.executable, script, text=True)
    (tmp_path / "go").unlink()
    log = tmp_path / "log"
    with log.open("wb") as file:
        words = ["run", "--live", "--no-calibrate", "--out", "run", script]
        live = start(processes, *words, stdout=subprocess.PIPE, stderr=file.fileno())
        line = re.compile(rb"^ddlprof \d\d:\d\d:\d\d ", re.MULTILINE)  # no terminal: plain lines
        until(lambda: line.search(log.read_bytes()), live)
        (tmp_path / "go").touch()
        output, _ = live.communicate(timeout=PATIENCE_S)
    assert python.stdout == output  # the sum of the parameters is in it
    assert live.returncode == python.returncode == 3
    assert b"\x1b" not in log.read_bytes()
    until(lambda: not views_of(tmp_path / "run"))


def test_ctrl_c_ends_the_training_and_the_view(
    live: Callable[..., OnATerminal], write_training: Callable[..., str], tmp_path: Path
) -> None:
    job = live(write_training(1_000_000))
    job.await_sight("steps/s")
    os.killpg(job.process.pid, signal.SIGINT)  # what a terminal does
    job.await_end(tmp_path / "run")
    assert job.process.returncode == -signal.SIGINT
    assert any(line.startswith("KeyboardInterrupt") for line in job.terminal.seen)
    assert job.terminal.bottom == 29


@pytest.mark.slow
def test_the_training_goes_on_without_its_view(
    live: Callable[..., OnATerminal], write_training: Callable[..., str], tmp_path: Path
) -> None:
    job = live(write_training(300, WAIT_FOR_GO))
    job.await_sight("steps/s")
    (view,) = views_of(tmp_path / "run")
    view.send_signal(signal.SIGKILL)
    (tmp_path / "go").touch()
    job.await_end(tmp_path / "run")
    assert job.process.returncode == 0
    assert job.terminal.bottom == 29  # the training gave the terminal back
    assert any(line.startswith("trained 300") for line in job.terminal.seen)


def test_the_view_ends_when_the_training_is_killed(processes: Processes, tmp_path: Path) -> None:
    """Of a process that only sleeps, beside a run that somebody else has written."""
    training = processes.start(sys.executable, "-c", "import time; time.sleep(1000)", cold=True)  # a child of ours
    GrowingRun(tmp_path / "run", pid=training.pid).begin().train(40)
    view = OnATerminal(processes, "watch", "--beside", str(training.pid), "--", str(tmp_path / "run"))
    view.await_sight("steps/s")
    assert view.terminal.bottom == 30 - 1 - 3
    view.process.send_signal(signal.SIGINT)  # of the terminal: it is the training's
    training.kill()
    until(lambda: view.process.poll() is not None)  # the training is a zombie, as nobody has asked for it
    assert training.wait() == -signal.SIGKILL
    assert view.read().bottom == 29
    assert not view.sees("steps/s")


@pytest.mark.slow
@pytest.mark.dist
def test_one_view_shows_all_ranks(
    live: Callable[..., OnATerminal], write_training: Callable[..., str], tmp_path: Path
) -> None:
    """The ranks are started by torch's launcher, each from nothing."""
    job = live("--nproc-per-node", "2", write_training(200, WAIT_FOR_GO), "--distributed")
    job.await_sight("2 ranks")
    assert len(views_of(tmp_path / "run")) == 1
    (tmp_path / "go").touch()
    job.await_end(tmp_path / "run")
    assert job.process.returncode == 0
    assert sum(line.startswith("trained 200") for line in job.terminal.seen) == 2


@pytest.mark.slow
def test_watching_a_run_that_is_killed(
    processes: Processes, write_training: Callable[..., str], tmp_path: Path
) -> None:
    training = start(processes, "run", "--quiet", "--no-calibrate", "--out", "run", write_training(1_000_000))
    lines: list[str] = []
    watching = start(processes, "watch", "run", "--wait", "10m", "--interval", "0.5", stderr=subprocess.PIPE)
    assert watching.stderr is not None
    for line in watching.stderr:
        lines.append(line)
        if "steps/s" in line and training.poll() is None:
            training.kill()
            training.wait(PATIENCE_S)
    assert watching.wait(PATIENCE_S) == 0
    assert lines[0] == "ddlprof: waiting for run\n"
    assert re.fullmatch(r"ddlprof: the run was killed after [\d,]+ steps .*; next: ddlprof report run\n", lines[-1])


@pytest.mark.slow
def test_leaving_the_view_leaves_the_training_alone(
    processes: Processes, write_training: Callable[..., str], tmp_path: Path
) -> None:
    words = ["run", "--quiet", "--no-calibrate", "--out", "run", write_training(400, WAIT_FOR_GO)]
    training = start(processes, *words, stdout=subprocess.PIPE)
    watching = OnATerminal(processes, "watch", "run", "--wait", "10m")
    written = b""

    def has(what: bytes) -> bool:
        nonlocal written
        with suppress(OSError):
            written += os.read(watching._main, 1 << 16)
        return what in written

    until(lambda: has(b"steps/s"), watching.process)
    assert b"\x1b[?1049h" in written
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait(PATIENCE_S) == 130
    until(lambda: has(b"\x1b[?1049l"))
    (tmp_path / "go").touch()
    output, _ = training.communicate(timeout=PATIENCE_S)
    assert training.returncode == 0
    assert output.startswith("trained 400")
