"""What the terminal shows of a run: the card at its end, and the view of `ddlprof run --live` while it trains.

Each is made by a `ddlprof` of its own, as reports need packages that a training must not load. The card's process also
saves the run's summary. The view reads the run's files and shares only the terminal. It is no child of ours, so that a
script that waits for its children meets none of which it knows nothing, and it is in a session of its own: Ctrl-C is
the training's. We hold nothing of it but its number. Whatever goes wrong here, the training goes on.
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
from time import monotonic, sleep  # as they are before the script runs

import ddlprof
from ddlprof.model import codec

_STDERR = 2
_COMMAND = str(Path(ddlprof.__file__).with_name("__main__.py"))
_START = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=2).pid)"
_PATIENCE_S = 3.0
_WHOLE_TERMINAL = b"\x1b7\x1b[r\x1b8"
"""All rows scroll again; the cursor stays where it is."""


def await_ranks(run_directory: Path, ranks: int = 1, patience_s: float = 3.0) -> None:
    """Waits briefly until all ranks of the last attempt that left a file have written how they ended.

    It waits for at least `ranks` of them, but for no process of this machine that is gone.
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
        if header.host != socket.gethostname() or os.name == "nt":  # there, signal 0 is no question
            return False
        os.kill(header.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, TypeError):
        pass
    return False


def print_card(run_directory: Path, working_directory: str) -> None:
    """Runs `ddlprof report` with its output on stderr; where that fails there is no card rather than an error.

    It also saves the run's summary. `working_directory` is where the user started the run: the paths on the card are
    relative to it.
    """
    shown = os.path.relpath(run_directory, working_directory)
    if shown.startswith(os.pardir):
        shown = str(run_directory)
    if sys.__stderr__ is None:  # closed when we began: the number is a file's of the script
        return
    with suppress(Exception):
        sys.stderr.flush()
        _report(shown, working_directory, _STDERR)


def save_summary(run_directory: Path) -> None:
    """Saves the run's summary where no card is wanted."""
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
    """When it began, as the kernel counts: another process may get the number."""
    owner: int
    """The process that started it; in its forked children nothing is done."""

    def end(self) -> None:
        """Ends the view and waits until it has given the terminal back."""
        if os.getpid() != self.owner:
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
    """Shows the run in `directory` as long as process `owner` is there; None where that cannot be."""
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
    return View(number, _started(number), os.getpid())


def _started(process: int) -> str:
    """When a process began, in the kernel's ticks; empty if it has ended, or where the kernel does not say."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _free_terminal() -> None:
    """Gives the terminal back for a view that was killed and cannot do so itself."""
    if os.isatty(_STDERR):
        os.write(_STDERR, _WHOLE_TERMINAL)
