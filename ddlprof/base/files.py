"""Files that others may read at any time: the old file or the new one is there, whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_whole(path: Path, text: str) -> None:
    """Replaces a file atomically. Raises OSError where it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode(errors="replace"))  # names of files may be no text


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write to: what is there replaces the file at the end, or is removed after an exception."""
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
