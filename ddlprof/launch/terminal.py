"""What the terminal shows of a run: the card at its end, and the view of `ddlprof run --live` while it trains.

Each is a `ddlprof` process of its own, because reports need packages that a training must not load. The card's process
also saves the run's summary. The view reads the run's files and shares only the terminal. It is not a child of the
training, so a script that waits for its children does not meet it, and it is in a session of its own, so Ctrl-C reaches
only the training. Of the view only the number of its process is kept. `ddlprof.launch.afterwards` deals with errors of
both.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep  # before the script can replace them

from ddlprof.base.package import COMMAND
from ddlprof.base.real_process import getpid
from ddlprof.model import rank_ends

_STDERR = 2
CARD_WORDS = ("report", "--at-the-end", "--")
"""The words before the run directory in the command that shows a run which has just ended; not for people."""
_START = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=2).pid)"
_PATIENCE_S = 3.0
VIEW_S = 2 * _PATIENCE_S
CARD_S = 60.0
"""The most time that a training's end waits for the ranks and for the card, which needs a second or two. The card's
process itself gives up earlier, see `ddlprof.cli.fast_path.show_card`."""
_ATTEMPT = re.compile("attempt-([0-9]{1,9})")
_WHOLE_TERMINAL = b"\x1b7\x1b[r\x1b8"
"""Makes all rows of the terminal scroll again and leaves the cursor where it is."""


def await_ranks(run_directory: Path, ranks: int = 1, patience_s: float = 3.0) -> None:
    """Waits briefly until all ranks of the last attempt that have a file have written how they ended.

    Waits for at least `ranks` ranks, but not for processes of this machine that no longer exist, nor for files that
    cannot be read.
    """
    deadline = monotonic() + patience_s
    over: set[Path] = set()
    while monotonic() < deadline:
        files = _rank_files(run_directory)
        for file in files:
            if file not in over and (monotonic() >= deadline or not _is_over(file)):
                break
            over.add(file)
        else:
            if len(files) >= ranks:
                return
        sleep(0.05)


def _rank_files(run_directory: Path) -> list[Path]:
    """The ranks' files of the last attempt. Other folders may have similar names, such as that of a copy."""
    found = [(match, path) for path in run_directory.glob("attempt-*") if (match := _ATTEMPT.fullmatch(path.name))]
    last = max(found, key=lambda each: int(each[0][1]), default=None)
    return [] if last is None else list(last[1].glob("rank-*.jsonl"))


def _is_over(file: Path) -> bool:
    try:
        return rank_ends.end_of(file) is not None or _is_gone(file)
    except OSError:
        return True


def _is_gone(file: Path) -> bool:
    try:
        header = rank_ends.header_of(file)
        if header.host != socket.gethostname() or os.name == "nt":  # on Windows signal 0 does not only test
            return False
        os.kill(header.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, TypeError):
        pass
    return False


def relative(run_directory: Path, working_directory: str) -> Path:
    """The run directory as somebody in the working directory would name it."""
    shown = os.path.relpath(run_directory, working_directory)
    return run_directory if shown.startswith(os.pardir) else Path(shown)


def print_card(run_directory: Path, working_directory: str) -> None:
    """Shows the card on stderr. The same process saves the run's summary.

    `working_directory`: where the user started the run; paths on the card are relative to it. Raises OSError if no
    process can be started or if it is killed. One that fails says so itself.
    """
    if None in (sys.stderr, sys.__stderr__):  # closed at the start: its number now belongs to a file of the script
        return
    with suppress(Exception):
        sys.stderr.flush()
    _report(str(relative(run_directory, working_directory)), working_directory, _STDERR)


def save_summary(run_directory: Path) -> None:
    """Saves the run's summary, for runs without a card. Raises OSError like `print_card`."""
    _report(str(run_directory.absolute()), None, subprocess.DEVNULL)


def _report(run: str, working_directory: str | None, output: int) -> None:
    code = subprocess.run(
        [sys.executable, COMMAND, *CARD_WORDS, run],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output == _STDERR else output,
        cwd=working_directory,
        check=False,
    ).returncode
    if code < 0:
        raise ChildProcessError(f"its process was ended by signal {-code}")


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
        """Ends the view and waits until it has restored the terminal. Raises OSError if it cannot be ended."""
        if getpid() != self.owner:
            return
        if not self._is_there():
            _free_terminal()
            return
        os.kill(self.number, signal.SIGTERM)
        deadline = monotonic() + _PATIENCE_S
        while self._is_there() and monotonic() < deadline:
            sleep(0.01)

    def _is_there(self) -> bool:
        return bool(self.started) and _started(self.number) == self.started


def start_view(directory: Path, owner: int) -> View | None:
    """Shows the run in `directory` as long as process `owner` exists; None if that is not possible."""
    if os.name == "nt" or sys.__stderr__ is None:
        return None
    try:
        command = [sys.executable, COMMAND, "watch", "--beside", str(owner), "--", str(directory)]
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
