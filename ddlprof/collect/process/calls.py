"""The function that an instruction calls, by the source: functions in C have no frame that would tell it."""

from __future__ import annotations

import ast
import linecache
from itertools import islice
from types import CodeType


def called_name(code: CodeType, instruction: int) -> str:
    """Its name; empty if the version of Python does not tell. Raises where there is no source."""
    call = _call(code, instruction)
    function = None if call is None else call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_given(code: CodeType, instruction: int, keyword: str) -> bool:
    """Whether the call has this argument by its name, other than False. Raises where there is no source."""
    call = _call(code, instruction)
    values = [] if call is None else [each.value for each in call.keywords if each.arg == keyword]
    return any(not isinstance(value, ast.Constant) or bool(value.value) for value in values)


def _call(code: CodeType, instruction: int) -> ast.Call | None:
    positions_of = getattr(code, "co_positions", None)  # Python 3.11 and later
    if positions_of is None:
        return None
    line, end_line, column, end_column = next(islice(positions_of(), instruction // 2, None))
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(line, end_line + 1)]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    call = ast.parse(b"".join(lines).strip(), mode="eval").body
    return call if isinstance(call, ast.Call) else None
