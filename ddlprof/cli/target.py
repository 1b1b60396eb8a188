"""What `ddlprof run` does once it is known what is asked for: the target runs in the form that it asks for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError
from ddlprof.model.naming import on_this_machine
from ddlprof.model.options import DISABLE_VARIABLE, Options

if TYPE_CHECKING:
    from ddlprof.launch.elastic import LauncherOptions
    from ddlprof.launch.target import Target


def run_plainly(words: list[str]) -> int | None:
    """Runs what follows `ddlprof run`, if it takes no parser to tell what that is; returns the exit code.

    None: it does, as there are options but the most frequent, or mistakes. A test compares with what the parser makes.
    """
    options, module, words = Options(), False, list(words)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--":
            break
        if option == "--quiet":
            options.quiet = True
        elif option in ("-m", "--module"):
            module = True
        elif option in ("-o", "--out") and words and not words[0].startswith("-"):
            options.out = on_this_machine(words.pop(0))
        else:
            return None
    if not words or not words[0]:
        return None
    from ddlprof.launch.elastic import LauncherOptions
    from ddlprof.launch.target import Target

    return run_target(Target(words, module), LauncherOptions(), options)


def run_target(target: Target, job: LauncherOptions, options: Options) -> int:
    """Runs the target; returns the exit code where this process does not become it.

    `job`: what is asked of a launcher. The options do not count where the user has switched ddlprof off.
    """
    from ddlprof.base.torch_needed import require_torch
    from ddlprof.launch import command, elastic
    from ddlprof.launch.target import become, python_command

    asked = None if os.environ.get(DISABLE_VARIABLE, "0") not in ("", "0") else options
    torchrun_words = elastic.torchrun_words(target)
    if torchrun_words is not None:
        _say_once(job, "torchrun")
        require_torch()
        return elastic.launch_torchrun(torchrun_words, asked)
    python = None if target.module else python_command(target.words)
    if python is None and not target.module and command.is_command(target.words):
        _say_once(job, target.words[0])
        return command.run_command(target.words, asked)
    if asked or job.asked_for():  # a command of its own, above, may start a Python that has torch
        require_torch()
    if job.asked_for():
        return elastic.launch_target(job, python.target if python else target, asked)
    if python is not None:
        return become(python.target, asked, python.options)
    return become(target, asked)


def _say_once(job: LauncherOptions, launcher: str) -> None:
    if job.asked_for():
        raise UserError(f"say how many processes once: to {launcher}, or to ddlprof run without {launcher}")
