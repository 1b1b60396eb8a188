"""How a rank ended, in the name of an empty file: a full disk has no space for a line, but most have it for a name.

The name is that of the rank's other files with `end-STATUS-CODE-TIME` in place of their ending.
"""

from __future__ import annotations

import re

from ddlprof.model.records import End

_NAME = re.compile(r"rank-(0|[1-9]\d{0,8})\.end-([a-z]{1,20})-(\d{1,10})-(\d{1,18})")


def unwritten_end_name(rank: int, end: End) -> str:
    """The name of the file of a rank that ended so."""
    return f"rank-{rank}.end-{end.status}-{end.exit_code}-{end.time_ns}"


def unwritten_end_of(name: str) -> tuple[int, End] | None:
    """The rank, and how it ended, by the name of a file; None for other files."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), End(match[2], int(match[3]), int(match[4])))
