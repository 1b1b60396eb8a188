"""A script that replaces its own process by another program, most often by itself again: `os.execv` and its forms.

What was measured is written before, as an attempt that ended well. The process keeps its number, so a new program that
trains is known as the same rank, whose next attempt it is.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import complain
from ddlprof.base.real_process import getpid
from ddlprof.base.text import shell_word

if TYPE_CHECKING:
    from ddlprof.collect.session import Session

_FORMS = ("execv", "execve")
"""The others of the module `os` call these."""


def watch_exec(session: Session, quiet: bool) -> None:
    """Has the session end before this process becomes another program."""
    base = os.getcwd()
    for name in _FORMS:
        if hasattr(os, name):
            setattr(os, name, _ending_before(getattr(os, name), session, quiet, base))


def _ending_before(become: Callable[..., Any], session: Session, quiet: bool, base: str) -> Callable[..., Any]:
    @functools.wraps(become)
    def exec_(path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if getpid() == session.pid and _is_program(path):
                _end(session, quiet, base)
        except Exception as error:  # fail open
            if not quiet:
                complain(f"what was measured before the script replaced itself: {type(error).__name__}: {error}")
        return become(path, *args, **kwargs)

    return exec_


def _is_program(path: Any) -> bool:
    """Whether it can become this; `execvp` tries one folder after the other."""
    return isinstance(path, int) or shutil.which(os.path.abspath(os.fsdecode(path))) is not None


def _end(session: Session, quiet: bool, base: str) -> None:
    session.finish("ok", 0, replaced=True)
    if session.progress.steps and session.rank == 0 and not quiet:
        run = shell_word(os.path.relpath(session.directory or "", base), path=True)
        complain(
            f"the script replaced itself by another program; its steps so far: ddlprof report {run}; "
            "what follows is measured where that is Python with this environment"
        )
