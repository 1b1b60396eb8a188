"""A command line that begins with `python`: its script or module, and the options of the interpreter before it."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from ddlprof.launch.target import Target

_FLAGS = re.compile(r"-[bBdEiIOPqsSuvx]+|-[XW].+")
_WITH_VALUE = ("-X", "-W")


@dataclass(frozen=True)
class PythonCommand:
    """What `python OPTIONS TARGET` asks for."""

    options: list[str]
    target: Target


def python_command(words: list[str]) -> PythonCommand | None:
    """The command if it is one of the very Python that runs ddlprof, else None: another Python has other packages."""
    return from_command(words[1:]) if _is_ours(words[0]) else None


def from_command(words: list[str]) -> PythonCommand | None:
    """Takes apart what follows `python`; None where there is no script or module (`-c`, `--version`, ...)."""
    for index, word in enumerate(words):
        if index and words[index - 1] in _WITH_VALUE:
            continue
        if not word.startswith("-") or word == "-":
            return None if word == "-" else PythonCommand(words[:index], Target(words[index:]))
        if word == "-m" and index + 1 < len(words):
            return PythonCommand(words[:index], Target(words[index + 1 :], module=True))
        if word not in _WITH_VALUE and not _FLAGS.fullmatch(word):
            return None
    return None


def _is_ours(name: str) -> bool:
    """Whether this Python runs ddlprof, by its directory as well: virtual environments may link to one file."""
    if not sys.executable or not re.fullmatch(r"python[\d.]*(\.exe)?", os.path.basename(name)):
        return False
    import shutil

    found = shutil.which(name)
    if found is None:
        return False
    there = os.path.abspath(found)
    same_directory = os.path.dirname(there) == os.path.dirname(os.path.abspath(sys.executable))
    return same_directory and os.path.samefile(there, sys.executable)
