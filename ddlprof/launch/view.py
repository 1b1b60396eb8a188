"""The view of `ddlprof run --live`: a process of its own, which reads the run's files and shares only the terminal.

It is no child of ours, so that a script that waits for its children meets none of which it knows nothing, and it is in
a session of its own: Ctrl-C is the training's. We hold nothing of it but its number. Whatever goes wrong here, the
training goes on without a view.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep  # as they are before the script runs

import ddlprof

_COMMAND = str(Path(ddlprof.__file__).with_name("__main__.py"))
_START = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=2).pid)"
_PATIENCE_S = 3.0
_STDERR = 2
_WHOLE_TERMINAL = b"\x1b7\x1b[r\x1b8"
"""All rows scroll again; the cursor stays where it is."""


@dataclass(frozen=True)
class View:
    """A view that was started."""

    number: int
    """Of its process."""
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
    """For a view that was killed: it cannot do that itself any more."""
    if os.isatty(_STDERR):
        os.write(_STDERR, _WHOLE_TERMINAL)
