"""The option `--format` of commands that show a report."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ddlprof.base.errors import UserError


def chosen_formats(text: str, output: Path | None, known: Collection[str], besides: str = "") -> list[str]:
    """The formats in `F,...`. Raises UserError for an unknown one, naming `besides`, or for several in one file."""
    formats = [name.strip() for name in text.split(",")]
    for name in formats:
        if name not in known:
            raise UserError(f"unknown format {name!r}; known: {', '.join(known)}{besides}")
    if output is not None and len(formats) > 1:
        raise UserError("-o takes one format: run the command once for each file")
    return formats
