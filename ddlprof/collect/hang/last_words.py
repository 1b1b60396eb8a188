"""The file into which Python writes the stacks of a rank whose process is aborted, by `faulthandler`.

There is one `faulthandler` in a process. A script that wants it for itself has it, also if it says so late.
"""

from __future__ import annotations

import faulthandler
import weakref
from io import FileIO
from pathlib import Path


class _Held:
    """What `faulthandler` is given in place of the file."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def fileno(self) -> int:
        return self._file.fileno()

    def flush(self) -> None:
        """Nothing is buffered."""


class LastWords:
    """Begun where nobody uses `faulthandler`. Raises OSError where the file cannot be made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)  # never that which a link leads to
        held = _Held(self._file)
        faulthandler.enable(held)  # it asks for no more than these two methods
        self._held = weakref.ref(held)

    @property
    def in_use(self) -> bool:
        """Whether the stacks still go to this file: `faulthandler` alone keeps the object that it was given, and drops
        it when the script turns it off or names another file."""
        return self._held() is not None

    def forked(self) -> None:
        """Called in a forked child process, whose stack is not that of the rank."""
        if self.in_use:
            faulthandler.disable()

    def remove(self) -> None:
        """Called when the script has ended without an abort."""
        self.forked()
        self._file.close()
        self._path.unlink(missing_ok=True)
