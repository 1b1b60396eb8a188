"""A process that a profiled script or launcher started: it becomes a rank of the run once it is seen to train.

That is when it makes a process group or, unless it was started by the rank of a launcher, an optimizer. Helpers, loader
workers and compile workers do neither: until then nothing is installed but the two hooks that wait for it. Nothing here
raises.
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

from ddlprof.launch.ending import Ending
from ddlprof.model.errors import complain
from ddlprof.model.job import Job

if TYPE_CHECKING:
    from ddlprof.collect.session import Session

_LAST = -100
"""The priority among the things that a process of `multiprocessing` does at its end."""


def arm() -> None:
    """Waits for the first sign of training, if this process belongs to a run; it is about to import torch."""
    job = Job.from_environment()
    if job is not None:
        from ddlprof.collect.process.on_import import after_import

        after_import("torch", functools.partial(_watch, job))


def _watch(job: Job) -> None:
    try:
        _Signs(job).install()
    except Exception as error:
        _say(job, error)


class _Signs:
    """The two hooks; the first one called removes both."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._uninstall: Callable[[], None] = lambda: None

    def install(self) -> None:
        from ddlprof.collect.hooks import process_group
        from ddlprof.collect.install import all_of

        group = process_group.follow(self._seen_group)
        self._uninstall = all_of(group, self._install_optimizer()) if self._job.optimizers_count else group

    def _install_optimizer(self) -> Callable[[], None]:
        import torch

        from ddlprof.collect.install import replace

        optimizer: Any = torch.optim.Optimizer
        original = optimizer.__init__

        @functools.wraps(original)
        def __init__(*args: Any, **kwargs: Any) -> None:
            self._seen()
            current = vars(optimizer)["__init__"]  # the session may have put its own in our place
            (original if current is __init__ else current)(*args, **kwargs)

        return replace(optimizer, "__init__", __init__)

    def _seen(self) -> Session | None:
        if _is_loader_worker():
            return None
        self._uninstall()
        return _begin(self._job)

    def _seen_group(self) -> None:
        session = self._seen()
        if session is not None:
            session.on_process_group()


def _is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _begin(job: Job) -> Session | None:
    """Makes this process a rank from now on."""
    try:
        from ddlprof.collect.session import start

        card = job.options.card and job.top == os.getpid()  # the script has replaced itself: still the same process
        options = replace(job.options, card=card)
        session = start(options, job.name or Path(sys.argv[0]).stem, list(sys.argv), job, whole_process=True)
        _finish_at_end(Ending(options, session))
        _follow_forks(session, job)
    except Exception as error:
        _say(job, error)
        return None
    return session


def hand_down(session: Session, name: str) -> None:
    """Hands down what the processes that the script is about to start need."""
    place = session.place
    directory = str(place.directory) if place.directory else None
    alone = place.rank == 0 and place.world_size == 1
    job = Job(session.options, name, place.header.job_id, directory, session.experiment, os.getpid(), alone)
    os.environ.update(job.environment())
    _follow_forks(session, job)


def _follow_forks(session: Session, job: Job) -> None:
    """Arranges that children made by fork share nothing with the session, and may become ranks themselves."""

    def begin_anew() -> None:
        session.uninstall()
        forked = _begin(job)
        if forked is not None:
            forked.on_process_group()

    def in_child() -> None:
        if os.getpid() != session.pid and not session.begun:
            after_import("torch", functools.partial(_watch, job))

    from ddlprof.collect.process.on_import import after_import

    session.on_forked_group = begin_anew
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


def _finish_at_end(ending: Ending) -> None:
    """Finishes where a process of `multiprocessing` ends: it runs no exit handlers but its own."""

    from multiprocessing import util  # not at the top: in the first process, its own exit handler must come after ours

    def finish() -> None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        if error is not None:
            ending.note(error)
        ending.finish()

    atexit.register(finish)
    util.Finalize(None, finish, exitpriority=_LAST)


def _say(job: Job, error: Exception) -> None:
    if not job.options.quiet:
        complain(f"process {os.getpid()} is not measured: {type(error).__name__}: {error}")
