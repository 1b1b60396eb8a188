"""A process that a profiled script or launcher has started. It becomes a rank of the run once it trains.

The sign of training is that it makes a process group or, unless a launcher's rank started it, an optimizer. In a child
made by fork, which may already have an optimizer, it is also the first backward. Helpers, loader workers and compile
workers do none of these. Until then only the hooks that wait for a sign are installed. Nothing here raises.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import complain
from ddlprof.base.real_process import getpid
from ddlprof.launch.ending import Ending
from ddlprof.launch.replaced import watch_exec
from ddlprof.model.options import ParentRun

if TYPE_CHECKING:
    from ddlprof.collect.session import Session

_LAST = -100
"""The priority of our handler among those that `multiprocessing` calls at a process's end: the last."""


def arm() -> None:
    """Waits for the first sign of training if this process belongs to a run.

    Called when torch is about to be imported.
    """
    job = ParentRun.from_environment()
    if job is not None:
        from ddlprof.collect.process.on_import import after_import

        after_import("torch", functools.partial(_watch, job))


def _watch(job: ParentRun) -> None:
    try:
        _Signs(job).install()
    except Exception as error:
        _say(job, error)


class _Signs:
    """Hooks that wait for a sign of training. The first that is called removes all of them."""

    def __init__(self, job: ParentRun) -> None:
        self._job = job
        self._over = False
        self._uninstall: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Installs the hooks in a process that was started as a new program."""
        import torch

        from ddlprof.collect.hooks import process_group
        from ddlprof.collect.install import all_of

        group = process_group.follow(self._seen_group)
        making = [self._sign(torch.optim.Optimizer, "__init__")] if self._job.optimizers_count else []
        self._uninstall = all_of(group, *making)

    def install_in_fork(self, session: Session) -> None:
        """Installs the hooks in a child made by fork, which still has the hooks of its parent's session."""
        import torch

        from ddlprof.collect.install import all_of

        signs = [self._sign(torch.optim.Optimizer, "__init__"), self._sign(torch.autograd, "backward")]
        self._uninstall = all_of(session.uninstall, *signs)

    def _sign(self, owner: Any, name: str) -> Callable[[], None]:
        from ddlprof.collect.install import replace

        original = vars(owner)[name]

        @functools.wraps(original)
        def sign(*args: Any, **kwargs: Any) -> Any:
            if self._over:  # another hook was put on top of ours, so ours is still called
                return original(*args, **kwargs)
            self._seen()
            current = vars(owner)[name]  # the session may have replaced ours
            return (original if current is sign else current)(*args, **kwargs)

        return replace(owner, name, sign)

    def _seen(self) -> Session | None:
        if _is_loader_worker():
            return None
        self.uninstall()
        return _begin(self._job)

    def uninstall(self) -> None:
        """Removes the hooks; no sign is waited for any longer."""
        self._over = True
        self._uninstall()

    def _seen_group(self) -> None:
        session = self._seen()
        if session is not None:
            session.on_process_group()


def _is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _begin(job: ParentRun) -> Session | None:
    """Makes this process a rank."""
    try:
        from ddlprof.collect.session import start

        card = job.options.card and job.top == getpid()  # the same process, if the script has replaced itself
        options = replace(job.options, card=card)
        session = start(options, job.name or Path(sys.argv[0]).stem, list(sys.argv), job, whole_process=True)
        _finish_at_end(Ending(options, session))
        watch_exec(session, options.quiet)
        _follow_forks(session, job)
    except Exception as error:
        _say(job, error)
        return None
    return session


def hand_down(session: Session, name: str) -> None:
    """Sets the environment for the processes that the script is about to start."""
    rank_output = session.rank_output
    directory = str(rank_output.directory) if rank_output.directory else None
    alone = rank_output.rank == 0 and rank_output.world_size == 1
    job = ParentRun(session.options, name, rank_output.header.job_id, directory, session.added, getpid(), alone)
    os.environ.update(job.environment())
    _follow_forks(session, job)


def _follow_forks(session: Session, job: ParentRun) -> None:
    """Makes children made by fork share nothing with the session, and lets them become ranks themselves."""

    uninstall = session.uninstall

    def begin_anew() -> None:
        uninstall()
        forked = _begin(job)
        if forked is not None:
            forked.on_process_group()

    def in_child() -> None:
        nonlocal uninstall
        if getpid() == session.pid:
            return
        if not session.begun:
            after_import("torch", functools.partial(_watch, job))
        elif job.optimizers_count:
            try:
                signs = _Signs(job)
                signs.install_in_fork(session)
                uninstall = signs.uninstall
            except Exception as error:
                _say(job, error)

    from ddlprof.collect.process.on_import import after_import

    session.on_forked_group = begin_anew
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


def _finish_at_end(ending: Ending) -> None:
    """Finishes at the end of a process of `multiprocessing`, which runs no exit handlers but its own."""

    from multiprocessing import util  # not at the top: in the first process its exit handler must come after ours

    def finish() -> None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        if error is not None:
            ending.note(error)
        ending.finish()

    atexit.register(finish)
    util.Finalize(None, finish, exitpriority=_LAST)


def _say(job: ParentRun, error: Exception) -> None:
    if not job.options.quiet:
        complain(f"process {getpid()} is not measured: {type(error).__name__}: {error}")
