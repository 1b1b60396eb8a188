"""The function that an instruction calls, by the source: functions in C have no frame that would tell it."""

from __future__ import annotations

import ast
import linecache
from itertools import islice
from types import CodeType


def called_name(code: CodeType, instruction: int) -> str:
    """Its name; empty if the version of Python does not tell. Raises where there is no source."""
    positions_of = getattr(code, "co_positions", None)  # Python 3.11 and later
    if positions_of is None:
        return ""
    line, end_line, column, end_column = next(islice(positions_of(), instruction // 2, None))
    if line is None or end_line is None or column is None or end_column is None:
        return ""
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(line, end_line + 1)]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    call = ast.parse(b"".join(lines).strip(), mode="eval").body
    function = call.func if isinstance(call, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
