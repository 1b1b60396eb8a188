"""What the user asked to run: a script or a module, and its arguments."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ddlprof.base.errors import UserError

BOOTSTRAP = str(Path(__file__).with_name("bootstrap.py"))
"""The file that a profiled process runs in place of the script."""


@dataclass(frozen=True)
class Target:
    """`words[0]` is the script, or the module where `module` is set; the other words are its arguments."""

    words: list[str]
    module: bool = False

    @property
    def name(self) -> str:
        """The short name of the job: the script's file name without its ending, or the module."""
        return self.words[0] if self.module else Path(os.path.abspath(self.words[0])).stem

    def python_words(self) -> list[str]:
        """What follows `python` on a command line that runs the target without ddlprof."""
        return ["-m", *self.words] if self.module else self.words

    def profiled_words(self) -> list[str]:
        """What follows `python` on a command line that runs the target under ddlprof."""
        return [BOOTSTRAP, *self.python_words()]

    @classmethod
    def from_python_words(cls, words: list[str]) -> Target:
        """The inverse of `python_words`."""
        return cls(words[1:], module=True) if words[0] == "-m" else cls(words)

    def check(self) -> None:
        """Raises UserError if the script cannot be run; whether a module can, only its import tells."""
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
