"""What a command shows on a terminal, in its colours, as a picture."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

_LINES = 60
_READ_BYTES = 65_536


def shown(words: list[str], folder: Path, columns: int) -> str:
    """What `ddlprof` with these words writes to a terminal of so many columns, with its codes for colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "CI": "1"}  # CI: no question
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "ddlprof", *words], cwd=folder, env=environment, stdout=theirs, stderr=subprocess.DEVNULL
    ) as command:  # fmt: skip
        os.close(theirs)
        pieces = []
        while piece := _read(ours):
            pieces.append(piece)
    os.close(ours)
    if command.returncode:
        raise subprocess.CalledProcessError(command.returncode, words)
    return b"".join(pieces).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, _READ_BYTES)
    except OSError:  # on Linux, where the other end is closed
        return b""


def picture(typed: str, text: str, columns: int) -> str:
    """An SVG of a terminal in which `typed` says this text."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {typed}\n", "bold"), Text.from_ansi(text), sep="")
    svg = console.export_svg(title="ddlprof", unique_id="ddlprof")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # which a reader's browser would be sent for
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"
