"""Coefficients as JSON that people read: six digits, and lists of numbers on one line each."""

from __future__ import annotations

import json
import re
from typing import Any


def rounded(data: Any) -> Any:
    """Six digits: readable, and more than a fit knows."""
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    return [rounded(value) for value in data] if isinstance(data, (list, tuple)) else data


def readable(data: Any) -> str:
    """The text of a file, with its last line break."""
    text = json.dumps(data, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", _on_one_line, text) + "\n"


def _on_one_line(found: re.Match[str]) -> str:
    return "[" + re.sub(r",\s+", ", ", found.group(1)) + "]"
