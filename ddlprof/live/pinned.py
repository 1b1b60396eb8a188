"""A few lines at the bottom of a terminal that other processes write to: everything else scrolls above them.

The terminal is told to scroll only the rows above (DECSTBM), as package managers do for their progress. Whatever the
script prints, carriage returns and cursor movements of its progress bars included, stays as it would be on a terminal
with fewer rows. Each update is one write, leaves the cursor where it was, and sets everything up anew, so that a
terminal that was resized or reset heals.
"""

from __future__ import annotations

import textwrap

from ddlprof.base.text import plain
from ddlprof.live.snapshot import Snapshot
from ddlprof.live.words import status

ROWS = 3
LEAST_HEIGHT, LEAST_WIDTH = 12, 40
"""A smaller terminal is left to the script."""

_SAVE, _RESTORE = "\x1b7", "\x1b8"
_WHOLE = "\x1b[r"
_DOWN = "\x1bD"
_ERASE, _BELOW = "\x1b[2K", "\x1b[J"


def lines_of(snapshot: Snapshot, width: int) -> list[str]:
    """The status in `ROWS` lines of at most `width` characters."""
    text = plain(f"ddlprof  {'; '.join(status(snapshot))}")
    lines = textwrap.wrap(text, width, subsequent_indent=" " * 9, max_lines=ROWS, placeholder=" ...")
    return lines + [""] * (ROWS - len(lines))


def fits(width: int, height: int) -> bool:
    """Whether the terminal has room for the lines and for the script."""
    return height >= LEAST_HEIGHT and width >= LEAST_WIDTH


def drawn(lines: list[str], height: int, resized: bool = False) -> str:
    """What to write so that the lines are at the bottom of a terminal of `height` rows.

    Where it was `resized`, earlier lines are somewhere below the cursor.
    """
    room = f"{_SAVE}{_WHOLE}{_RESTORE}{_DOWN * len(lines)}\x1b[{len(lines)}A"  # scrolls if the cursor is at the bottom
    first = height - len(lines) + 1
    rows = "".join(f"\x1b[{first + number};1H{_ERASE}{line}" for number, line in enumerate(lines))
    return f"{room}{_BELOW if resized else ''}{_SAVE}\x1b[1;{first - 1}r\x1b[m{rows}{_RESTORE}"


def released(rows: int, height: int) -> str:
    """What to write so that the terminal is as it was, without the lines."""
    first = height - rows + 1
    erased = "".join(f"\x1b[{first + number};1H{_ERASE}" for number in range(rows))
    return f"{_SAVE}{_WHOLE}{erased}{_RESTORE}"
