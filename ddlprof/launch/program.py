"""The life of a profiled process: start measuring, run the user's program as `__main__`, finish, print the card.

The traceback, the exit code and ending by a signal are left to Python, as without ddlprof.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError, complain
from ddlprof.base.real_process import getpid
from ddlprof.launch.child import hand_down
from ddlprof.launch.ending import Ending
from ddlprof.launch.mainmodule import run_as_main
from ddlprof.launch.replaced import watch_exec
from ddlprof.launch.target import LaunchTarget
from ddlprof.model.options import Instead, Options

if TYPE_CHECKING:
    from ddlprof.collect.session import Session
    from ddlprof.launch.terminal import View

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def main() -> None:
    """Runs `[-m] SCRIPT|MODULE [ARGS]...` from `sys.argv`, with the options in the environment."""
    options = Options.from_environment()
    target = LaunchTarget.from_python_words(sys.argv[1:])
    session = None if _does_something_else() else _start_session(options, target)
    view = _view_of(session) if session is not None else None
    ending = Ending(options, session, view)
    # Handlers run in reverse order: this one after the user's, and after their threads.
    atexit.register(ending.finish)
    ending.watch_exit()
    if session is not None:
        watch_exec(session, options.quiet)
        hand_down(session, target.name)
    gc.enable()  # see `bootstrap`
    try:
        run_as_main(target, options.data_calls)
    except BaseException as error:
        ending.note(error)
        if not isinstance(error, SystemExit):
            _show_without_our_frames()
        raise
    finally:
        ending.prepare()


def _does_something_else() -> bool:
    """Whether an extension does something in this process in place of measuring its steps; it is then started."""
    instead = Instead.from_environment()
    if instead is None:
        return False
    import_module(instead.module).start(**instead.request)
    return True


def _start_session(options: Options, target: LaunchTarget) -> Session | None:
    try:
        from ddlprof.collect.session import start

        return start(options, target.name, target.words, whole_process=True)
    except UserError as error:
        complain(str(error))
        sys.exit(2)
    except Exception as error:  # an error of the profiler must not end the training
        if not options.quiet:
            complain(f"this run is not measured: {type(error).__name__}: {error}")
        return None


def _view_of(session: Session) -> View | None:
    """The live view of the run, if it was asked for and this is rank 0, which knows the run's directory."""
    if not session.options.live or session.rank or session.directory is None:
        return None
    from ddlprof.launch.terminal import start_view

    return start_view(session.directory, getpid())


def _show_without_our_frames() -> None:
    """Makes the current exception hook leave ddlprof's frames out of tracebacks."""
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        with suppress(Exception):
            clean(error)
        hook(kind, error, error.__traceback__)

    sys.excepthook = show


def clean(error: BaseException) -> None:
    """Removes ddlprof's frames from the tracebacks of an exception and of its causes.

    These are the frames that started the user's program, and those between the training and a timed call.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = without_our_frames(one.__traceback__)
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package."""
    kept = [each for each in _links(traceback) if not each.tb_frame.f_code.co_filename.startswith(_PACKAGE)]
    for each, following in zip(kept, [*kept[1:], None], strict=False):
        each.tb_next = following
    return kept[0] if kept else None


def _links(traceback: TracebackType | None) -> list[TracebackType]:
    links = []
    while traceback is not None:
        links.append(traceback)
        traceback = traceback.tb_next
    return links
