"""Names the checkpoints that are written and read, by hashes: the same file is known again after it was renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from ddlprof.collect.recorder import Recorder
from ddlprof.model.checkpoint_files import LOADED, MOST_LOADED, CheckpointFile

_OPTIONS = ("f", "filename", "checkpoint_id")
"""The names of the parameter with the path, in the functions that read and write."""
_METADATA = ".metadata"
"""The file that torch.distributed.checkpoint writes last into the directory of a checkpoint."""
_STEPS = ("global_step", "step", "steps", "iteration", "num_updates", "iter")
"""What scripts call the number of updates in what they save, the least ambiguous first."""
_DIGITS = 16


def where(arguments: tuple[Any, ...], options: Mapping[str, Any], position: int) -> tuple[str, str]:
    """The hashes of the path that a function was called with, and of the file there; empty where there is none.

    `position` is that of the path among the arguments. It may be an open file.
    """
    given = [options[name] for name in _OPTIONS if options.get(name) is not None]
    target = given[0] if given else arguments[position] if len(arguments) > position else None
    path = _path(target)
    if path is None:
        path = _path(getattr(options.get("storage_writer") or options.get("storage_reader"), "path", None))
    if path is None:
        return "", ""
    return _hashed(os.path.abspath(path)), _of_file(path)


def _path(target: Any) -> str | None:
    if not isinstance(target, (str, os.PathLike)):
        target = getattr(target, "name", None)  # an open file
    return os.fsdecode(target) if isinstance(target, (str, os.PathLike)) else None


def _of_file(path: str) -> str:
    try:
        if os.path.isdir(path):
            path = os.path.join(path, _METADATA)
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return _hashed(f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}")


def _hashed(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:_DIGITS]


def told(content: Any) -> int | None:
    """The step that a checkpoint names itself; None if it names none."""
    if not isinstance(content, dict):
        return None
    for name in _STEPS:
        value = content.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12:
            return value
    return None


class Loads:
    """Notes what is read before the first step; later reads are of data, or of other models."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._left = MOST_LOADED

    def note(self, arguments: tuple[Any, ...], options: Mapping[str, Any], position: int, content: Any) -> None:
        """Notes that a function that reads has returned this."""
        if self._left <= 0 or self._recorder.boundaries or not self._recorder.active:
            return
        self._left -= 1
        place, file = where(arguments, options, position)
        self._recorder.record(CheckpointFile(LOADED, 0, place, file, told(content)))
