"""Writes files that others may read at any time: they find either the whole old file or the whole new one.

All files that are written for a user, or into a run directory by its name, are written here: beside their place, under
a name that nobody can guess, and then renamed. So nobody who may write to the folder can lead the writing elsewhere.
A place that is a symbolic link itself becomes a file of its own where ddlprof chose the name; where the user did,
`ddlprof.cli.output` follows the link first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_RANDOM_BYTES = 8


def replace_whole(path: Path, text: str) -> None:
    """Replaces a file atomically. Raises OSError if it cannot be written."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode(errors="replace"))  # names of files may not be valid text


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a new empty file to write to. At the end it replaces `path`; after an exception it is removed.

    Its access rights are those of any new file. Raises OSError if it cannot be made.
    """
    temporary = temporary_beside(path)
    os.close(os.open(temporary, _NEW, 0o666))
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def replacing_all(paths: list[Path]) -> Iterator[list[Path]]:
    """`replacing` for several files, none of which is replaced unless all are written."""
    with ExitStack() as stack:
        yield [stack.enter_context(replacing(path)) for path in paths]


def user_directory(variable: str, usual: str) -> Path:
    """The user's own folder of ddlprof: below what the variable of the XDG Base Directory Specification names, or below
    `usual`. Raises RuntimeError where there is no home directory."""
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/ddlprof").expanduser()
    return Path(os.environ.get(variable) or usual).expanduser() / "ddlprof"


def temporary_beside(path: Path) -> Path:
    """A hidden path in the same folder that nobody can guess, for what shall become `path` by renaming."""
    return path.with_name(f".{path.name[:100]}.{os.urandom(_RANDOM_BYTES).hex()}.tmp")
