"""Prints the card of a finished run and saves its summary, in a process of its own.

The report needs packages that a training must not load.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep  # as they are before the script runs

import ddlprof
from ddlprof.model import codec

_STDERR = 2
_COMMAND = str(Path(ddlprof.__file__).with_name("__main__.py"))


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
