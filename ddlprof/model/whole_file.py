"""Files that others may read at any time: they are there whole, old or new."""

from __future__ import annotations

import os
from pathlib import Path


def replace_whole(path: Path, text: str) -> None:
    """Replaces a file atomically. Raises OSError where it cannot be written."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_bytes(text.encode(errors="replace"))  # names of files may be no text
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
