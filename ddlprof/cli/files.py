"""Files that commands write besides what they show."""

from __future__ import annotations

from pathlib import Path

from ddlprof.model.errors import UserError


def write_whole(path: Path, text: str) -> None:
    """Replaces the file, whole or not at all. Raises UserError where it cannot be written.

    A terminal, a pipe or a device is written to: nothing may replace it.
    """
    from ddlprof.model.whole_file import replace_whole

    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8")
        else:
            replace_whole(path.resolve(), text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None
