"""The form without a launcher: this process becomes a fresh interpreter that runs the target."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ddlprof.launch.target import Target
from ddlprof.model.options import Options


def interpreter_options(orig_argv: list[str], argv: list[str]) -> list[str]:
    """The options between `python` and its script or `-m MODULE`, such as `-u` or `-X dev`.

    `sys.flags` would not do: it knows nothing of `-u`, which torchrun gives to its workers.
    """
    options = orig_argv[1 : len(orig_argv) - len(argv)]
    if options and options[-1].startswith("-") and options[-1].endswith("m"):  # -m, or -um: the module is ours
        last = options.pop()[:-1]
        options += [last] if last != "-" else []
    return options


def become(target: Target, options: Options | None, more: Sequence[str] = ()) -> NoReturn:
    """Replaces this process; without options, ddlprof is not part of what follows. `more` is for the interpreter."""
    target.check()
    words = target.python_words()
    if options:
        options.to_environment()
        words = target.profiled_words()
    command = [sys.executable, *interpreter_options(sys.orig_argv, sys.argv), *more, *words]
    if os.name == "nt":  # there exec starts a second process and ends the first, which the caller waits for
        import subprocess

        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)
