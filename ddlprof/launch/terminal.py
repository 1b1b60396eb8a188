"""What the terminal shows of a run: the card at its end, and the view of `ddlprof run --live` while it trains.

Each is a `ddlprof` process of its own, because reports need packages that a training must not load. The card's process
also saves the run's summary. The view reads the run's files and shares only the terminal. It is not a child of the
training, so a script that waits for its children does not meet it, and it is in a session of its own, so Ctrl-C reaches
only the training. Of the view only the number of its process is kept. Errors here never end the training.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep  # before the script can replace them

import ddlprof
from ddlprof.base.real_process import getpid
from ddlprof.model import codec

_STDERR = 2
_COMMAND = str(Path(ddlprof.__file__).with_name("__main__.py"))
_START = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=2).pid)"
_PATIENCE_S = 3.0
_WHOLE_TERMINAL = b"\x1b7\x1b[r\x1b8"
"""Makes all rows of the terminal scroll again and leaves the cursor where it is."""


def await_ranks(run_directory: Path, ranks: int = 1, patience_s: float = 3.0) -> None:
    """Waits briefly until all ranks of the last attempt that have a file have written how they ended.

    Waits for at least `ranks` ranks, but not for processes of this machine that no longer exist.
    """
    deadline = monotonic() + patience_s
    while monotonic() < deadline:
        attempts = sorted(run_directory.glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        files = list(attempts[-1].glob("rank-*.jsonl")) if attempts else []
        if len(files) >= ranks and all(_ended(file) for file in files):
            return
        sleep(0.05)


def _ended(file: Path, tail_bytes: int = 200) -> bool:
    with file.open("rb") as lines:
        first = lines.readline()
        lines.seek(max(0, file.stat().st_size - tail_bytes))
        return b'\n["e",' in lines.read() or _is_gone(first)


def _is_gone(first_line: bytes) -> bool:
    try:
        header = codec.decode_header(first_line.decode())
        if header.host != socket.gethostname() or os.name == "nt":  # on Windows signal 0 does not only test
            return False
        os.kill(header.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, TypeError):
        pass
    return False


def print_card(run_directory: Path, working_directory: str) -> None:
    """Runs `ddlprof report` with its output on stderr. If that fails there is no card, but no error either.

    The same process saves the run's summary. `working_directory`: where the user started the run; paths on the card are
    relative to it.
    """
    shown = os.path.relpath(run_directory, working_directory)
    if shown.startswith(os.pardir):
        shown = str(run_directory)
    if sys.__stderr__ is None:  # closed at the start: its number now belongs to a file of the script
        return
    with suppress(Exception):
        sys.stderr.flush()
        _report(shown, working_directory, _STDERR)


def save_summary(run_directory: Path) -> None:
    """Saves the run's summary, for runs without a card."""
    with suppress(Exception):
        _report(str(run_directory.absolute()), None, subprocess.DEVNULL)


def _report(run: str, working_directory: str | None, output: int) -> None:
    subprocess.run(
        [sys.executable, _COMMAND, "report", "--save-summary", "--", run],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output == _STDERR else output,
        cwd=working_directory,
        check=False,
    )


@dataclass(frozen=True)
class View:
    """A view that was started."""

    number: int
    """The number of its process."""
    started: str
    """When the process began, in the kernel's ticks, because its number may be given to another process."""
    owner: int
    """The process that started the view. Its forked children do nothing with it."""

    def end(self) -> None:
        """Ends the view and waits until it has restored the terminal."""
        if getpid() != self.owner:
            return
        try:
            if not self._is_there():
                _free_terminal()
                return
            os.kill(self.number, signal.SIGTERM)
            deadline = monotonic() + _PATIENCE_S
            while self._is_there() and monotonic() < deadline:
                sleep(0.01)
        except Exception:
            return

    def _is_there(self) -> bool:
        return bool(self.started) and _started(self.number) == self.started


def start_view(directory: Path, owner: int) -> View | None:
    """Shows the run in `directory` as long as process `owner` exists; None if that is not possible."""
    if os.name == "nt" or sys.__stderr__ is None:
        return None
    try:
        command = [sys.executable, _COMMAND, "watch", "--beside", str(owner), "--", str(directory)]
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _START, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
        number = int(done.stdout)
    except Exception:
        return None
    return View(number, _started(number), getpid())


def _started(process: int) -> str:
    """When a process began, in the kernel's ticks; empty if it has ended or the kernel does not tell."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _free_terminal() -> None:
    """Restores the terminal after a view that was killed."""
    if os.isatty(_STDERR):
        os.write(_STDERR, _WHOLE_TERMINAL)
