"""Files that commands write besides what they show."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from ddlprof.base.errors import UserError


def write_whole(path: Path, text: str) -> None:
    """`write_pieces` of one text."""
    write_pieces(path, [text])


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Replaces the file, whole or not at all; compressed if its name ends with `.gz`.

    What nothing may replace is written to: a terminal, a pipe, a device, `/dev/stdout` wherever it leads, a file in a
    folder that takes no new ones. Raises UserError where it cannot be written.
    """
    import gzip

    from ddlprof.base.files import replacing

    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with (
            nullcontext(path) if _only_written_to(path) else replacing(path.resolve()) as target,
            opened(target, "wt", encoding="utf-8", errors="replace") as file,  # names of files may be no text
        ):
            file.writelines(pieces)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def _only_written_to(path: Path) -> bool:
    if not path.exists():
        return False
    stands_for_another = path.parts[:2] in (("/", "dev"), ("/", "proc"))
    return stands_for_another or not path.is_file() or not os.access(path.resolve().parent, os.W_OK)


def require_place(path: Path | None) -> None:
    """Raises UserError where a file cannot be written, before hours of work rather than after."""
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{path}: cannot be written: it is a folder")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: cannot be written: there is no folder {path.parent}")
