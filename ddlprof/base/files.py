"""Writes files that others may read at any time: they find either the whole old file or the whole new one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddlprof.base.real_process import getpid


def replace_whole(path: Path, text: str) -> None:
    """Replaces a file atomically. Raises OSError if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode(errors="replace"))  # names of files may not be valid text


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write to. At the end that file replaces `path`; after an exception it is removed."""
    temporary = path.with_name(f".{path.name[:100]}.{getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
