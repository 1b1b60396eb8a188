"""What the user asked to run (a script or module with arguments), and the command line of Python that runs it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ddlprof.base.errors import UserError
from ddlprof.model.options import Options

BOOTSTRAP = str(Path(__file__).with_name("bootstrap.py"))
"""The file that a profiled process runs in place of the script."""


@dataclass(frozen=True)
class LaunchTarget:
    """`words[0]` is the script, or the module where `module` is set; the other words are its arguments."""

    words: list[str]
    module: bool = False

    @property
    def name(self) -> str:
        """The short name of the job: the script's file name without its ending, or the module."""
        return self.words[0] if self.module else Path(os.path.abspath(self.words[0])).stem

    def python_words(self) -> list[str]:
        """The words after `python` on a command line that runs the target without ddlprof."""
        return ["-m", *self.words] if self.module else self.words

    def profiled_words(self) -> list[str]:
        """The words after `python` on a command line that runs the target under ddlprof."""
        return [BOOTSTRAP, *self.python_words()]

    @classmethod
    def from_python_words(cls, words: list[str]) -> LaunchTarget:
        """The inverse of `python_words`."""
        return cls(words[1:], module=True) if words[0] == "-m" else cls(words)

    def check(self) -> None:
        """Raises UserError if the script cannot be run. Whether a module can be run shows only its import."""
        script = self.words[0]
        if self.module:
            return
        if os.path.isdir(script):
            if not os.path.exists(os.path.join(script, "__main__.py")):
                raise UserError(f"cannot run {script}: a directory without a __main__.py; give a script or -m MODULE")
        elif not os.path.exists(script):
            raise UserError(f"cannot open {script}: no such file; give the path of a Python script or -m MODULE")
        elif not os.access(script, os.R_OK):
            raise UserError(f"cannot open {script}: permission denied; make the file readable")


_FLAGS = r"-[bBdEiIOPqsSuvx]+|-[XW].+"
_WITH_VALUE = ("-X", "-W")


@dataclass(frozen=True)
class PythonCommand:
    """The parts of `python OPTIONS TARGET`."""

    options: list[str]
    target: LaunchTarget


def python_command(words: list[str]) -> PythonCommand | None:
    """The command if it uses the Python that runs ddlprof; None otherwise: another Python has other packages."""
    return from_command(words[1:]) if _is_ours(words[0]) else None


def from_command(words: list[str]) -> PythonCommand | None:
    """Parses the words from `python` on; None if there is no script or module (`-c`, `--version`, ...)."""
    for index, word in enumerate(words):
        if index and words[index - 1] in _WITH_VALUE:
            continue
        if not word.startswith("-") or word == "-":
            return None if word == "-" else PythonCommand(words[:index], LaunchTarget(words[index:]))
        if word == "-m" and index + 1 < len(words):
            return PythonCommand(words[:index], LaunchTarget(words[index + 1 :], module=True))
        if word not in _WITH_VALUE and not re.fullmatch(_FLAGS, word):
            return None
    return None


def _is_ours(name: str) -> bool:
    """Whether this is the Python that runs ddlprof. Directories count, as virtual environments may link to one file."""
    if not sys.executable or not re.fullmatch(r"python[\d.]*(\.exe)?", os.path.basename(name)):
        return False
    import shutil

    found = shutil.which(name)
    if found is None:
        return False
    there = os.path.abspath(found)
    same_directory = os.path.dirname(there) == os.path.dirname(os.path.abspath(sys.executable))
    return same_directory and os.path.samefile(there, sys.executable)


def interpreter_options(orig_argv: list[str], argv: list[str]) -> list[str]:
    """The options between `python` and its script or `-m MODULE`, such as `-u` or `-X dev`.

    `sys.flags` does not tell them all: it lacks `-u`, which torchrun gives to its workers.
    """
    options = orig_argv[1 : len(orig_argv) - len(argv)]
    if options and options[-1].startswith("-") and options[-1].endswith("m"):  # -m, or -um
        last = options.pop()[:-1]
        options += [last] if last != "-" else []
    return options


def become(target: LaunchTarget, options: Options | None, more: Sequence[str] = ()) -> NoReturn:
    """Replaces this process by one that runs the target. Without options it runs without ddlprof.

    `more`: options for the interpreter.
    """
    target.check()
    words = target.python_words()
    if options:
        options.to_environment()
        words = target.profiled_words()
    command = [sys.executable, *interpreter_options(sys.orig_argv, sys.argv), *more, *words]
    if os.name == "nt":  # there exec starts a second process and ends the first, for which the caller waits
        import subprocess

        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)
