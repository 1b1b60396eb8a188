"""The end of a profiled process: records how it ended and prints the card if wanted."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import complain
from ddlprof.base.real_process import getpid
from ddlprof.base.text import shell_word
from ddlprof.launch.terminal import await_ranks, print_card, save_summary
from ddlprof.model.options import Options

if TYPE_CHECKING:
    from ddlprof.collect.session import Session
    from ddlprof.launch.terminal import View

_INTERRUPT_EXIT_CODE = 130
"""The exit code that a shell shows for a process that ended by SIGINT."""


class Ending:
    """How the program ended, and what is done then. Does nothing in forked children of the process."""

    def __init__(self, options: Options, session: Session | None, view: View | None = None) -> None:
        self.status = "ok"
        self.exit_code = 0
        self._options = options
        self._session = session
        self._view = view
        self._pid = getpid()
        self._directory = os.getcwd()

    def note(self, error: BaseException) -> None:
        """Notes the exception that ended the program."""
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

    def watch_exit(self) -> None:
        """Wraps `os._exit`, which ends a process at once without a card, to tell where the run's files are."""
        leave = os._exit

        @functools.wraps(leave)
        def _exit(*args: Any, **kwargs: Any) -> Any:
            session = self._session
            if session is not None and getpid() == self._pid and not self._options.quiet:
                with contextlib.suppress(Exception):
                    directory = shell_word(os.path.relpath(session.directory or "", self._directory), path=True)
                    complain(f"the script ended by os._exit: no card; its last steps: ddlprof report {directory}")
            leave(*args, **kwargs)

        os._exit = _exit

    def finish(self) -> None:
        """Ends the session, prints the card, saves the summary. Errors here do not change the exit code."""
        session, self._session = self._session, None
        if session is None or getpid() != self._pid:
            return
        try:
            session.finish(self.status, self.exit_code)
        except Exception as error:
            if not self._options.quiet:
                complain(f"the end of the run is not recorded: {type(error).__name__}: {error}")
        if self._view is not None:
            self._view.end()
        if session.directory and self._options.card and session.rank == 0:
            await_ranks(session.directory, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
            if self._options.quiet:
                save_summary(session.directory)
            else:
                print_card(session.directory, self._directory)
