"""The end of a profiled process: records how it ended and prints the card if wanted."""

from __future__ import annotations

import functools
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import complain
from ddlprof.base.real_process import getpid
from ddlprof.base.text import shell_word
from ddlprof.launch.afterwards import EndTask, LastResort, afterwards
from ddlprof.launch.terminal import CARD_S, VIEW_S, await_ranks, print_card, relative, save_summary
from ddlprof.model.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from ddlprof.collect.session import Session
    from ddlprof.launch.terminal import View

_RECORD_S = 30.0
"""The most time for the last records of a rank. The helper thread is given 25 of them (`ddlprof.collect.helper`), so
that there is time to say that it did not end."""
_EXIT_CODES = 0xFF
"""The bits of an exit code that are left when a process has ended."""
_INTERRUPT_EXIT_CODE = 130
"""The exit code that a shell shows for a process that ended by SIGINT."""


class Ending:
    """How the program ended, and what is done then. Does nothing in forked children of the process."""

    def __init__(self, options: Options, session: Session | None, view: View | None = None) -> None:
        self.status = "ok"
        self.exit_code = 0
        self._options = options
        self._session = session
        self._pid = getpid()
        self._directory = os.getcwd()
        self._last_resort: LastResort | None = None
        self._steps = [] if session is None else self._steps_of(session, view)

    def _steps_of(self, session: Session, view: View | None) -> list[EndTask]:
        """What is to do at the end."""
        return [
            EndTask("the end of the run is not recorded", _RECORD_S, partial(self._record, session)),
            *([EndTask("the live view is not ended", VIEW_S, view.end)] if view is not None else []),
            EndTask("no card", CARD_S, partial(self._show, session), lambda: self._run_of(session)),
        ]

    def note(self, error: BaseException) -> None:
        """Notes the exception that ended the program. Raises nothing."""
        try:
            if isinstance(error, SystemExit):
                code = error.code
                self.exit_code = code if isinstance(code, int) else int(code is not None)
                self.status = "exit" if self.exit_code else "ok"
            elif isinstance(error, KeyboardInterrupt):
                self.status, self.exit_code = "interrupt", _INTERRUPT_EXIT_CODE
            else:
                self.status, self.exit_code = "exception", 1
                if self._session is not None:
                    self._session.hangs.error = error
        except Exception:  # the next exception is the script's again
            return

    def prepare(self) -> None:
        """Called when the program has ended, before its exit handlers. Raises nothing."""
        if self._session is not None:
            self._last_resort = LastResort()

    def watch_exit(self) -> None:
        """Wraps `os._exit`, which ends a process at once without a card, to tell where the run's files are."""
        leave = os._exit

        @functools.wraps(leave)
        def _exit(*args: Any, **kwargs: Any) -> Any:
            session = self._session
            try:
                if session is not None and getpid() == self._pid and not self._options.quiet:
                    directory = shell_word(os.path.relpath(session.directory or "", self._directory), path=True)
                    complain(f"the script ended by os._exit: no card; its last steps: ddlprof report {directory}")
            finally:
                leave(*args, **kwargs)

        os._exit = _exit

    def finish(self) -> None:
        """Ends the session, prints the card, saves the summary. Raises nothing: the exit code stays what it is."""
        steps, self._steps, self._session = self._steps, [], None
        if steps and getpid() == self._pid:
            afterwards(self.exit_code & _EXIT_CODES, steps, self._options.quiet, self._last_resort, restore=True)

    def _record(self, session: Session) -> None:
        session.finish(self.status, self.exit_code)

    def _run_of(self, session: Session) -> Path | None:
        return session.directory and relative(session.directory, self._directory)

    def _show(self, session: Session) -> None:
        if session.directory and self._options.card and session.rank == 0:
            ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
            await_ranks(session.directory, int(ranks) if ranks.isdecimal() else 1)
            if self._options.quiet:
                save_summary(session.directory)
            else:
                print_card(session.directory, self._directory)
