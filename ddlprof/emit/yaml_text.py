"""YAML for programs, the one way in which every report is written in it: comments, then one or several documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from ddlprof.base.text import plain, text_of

_NO_TEXT_ELSEWHERE = re.compile(r"[yYnN]|[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?0[xob][0-9a-fA-F_]+")
"""What other readers than this library, such as those in Go, take for a number or a truth."""
_ONE_LINE = 1 << 30
"""A width that no text has: a command that is broken over lines is hard to read."""


def yaml_text(documents: Sequence[tuple[Sequence[str], Any]]) -> str:
    """Documents, each after its comments. Names are as they are, but what cannot be seen is written as an escape."""
    parts = []
    for number, (comments, value) in enumerate(documents):
        made = yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=_ONE_LINE)
        separator = ["---"] if number else []
        parts.append(
            text_of([*separator, *(f"# {comment}".rstrip() for comment in comments), *made.rstrip("\n").split("\n")])
        )
    return "".join(parts)


class _Writer(yaml.SafeDumper):  # type: ignore[misc] # the library has no annotations
    """Lists are indented, nothing refers to another place, and scripts stand as they are typed."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, indentless=False)


def _text(writer: _Writer, text: str) -> Any:
    """A script of several lines as a block. A text that cannot be seen in full stands in double quotes, where
    `text_of` may write an escape, and so does one that some readers take for something else."""
    lines = text.split("\n")
    if any(plain(line) != line for line in lines) or _NO_TEXT_ELSEWHERE.fullmatch(text):
        style: str | None = '"'
    else:
        style = "|" if len(lines) > 1 else None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _text)
