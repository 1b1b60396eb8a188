"""`ddlprof.profile()`: profiles a block of code, for notebooks and loops of one's own.

    with ddlprof.profile() as profile:
        train()
    profile.report()

The session is the same as that of `ddlprof run`, begun and ended inside a process that goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError, complain
from ddlprof.base.real_process import getpid
from ddlprof.model.options import DISABLE_VARIABLE, DataCall, Options, ParentRun

if TYPE_CHECKING:
    from ddlprof.api import Run
    from ddlprof.collect.session import Session


def profile(
    out: str | Path | None = None,
    *,
    name: str | None = None,
    stop_after: int | None = None,
    step_optimizer: str | None = None,
    data_calls: Sequence[str] = (),
) -> Profile:
    """Profiles the code of a `with` block. The run can be read afterwards, or watched from elsewhere meanwhile.

    `out`: the run directory (default: below `ddlprof-runs/`). `name`: the short name of the job. `stop_after`,
    `step_optimizer` and `data_calls` are options of `ddlprof run`; a data call is a text `MODULE:FUNCTION`.

    The code in the block always runs. Nothing is profiled if `DDLPROF_DISABLE=1` is set, if another block or
    `ddlprof run` is already profiling this process, or if profiling fails; `note` then says why. Entering the block
    raises `UserError` if `out` cannot be used. Exceptions of the block are passed on.
    """
    options = Options(
        out=os.fspath(out) if out is not None else None,
        quiet=True,
        stop_after=stop_after,
        step_optimizer=step_optimizer,
        data_calls=[str(DataCall.parse(text)) for text in data_calls],
        card=False,
    )
    return Profile(options, name or _name_of_program())


class Profile:
    """A block that is, or was, profiled. Made by `profile()`."""

    def __init__(self, options: Options, name: str) -> None:
        self.note: str | None = None
        """Why nothing was profiled here; None if it was."""
        self.directory: Path | None = None
        """The run directory. If a run was already under way, its directory."""
        self._options = options
        self._name = name
        self._session: Session | None = None

    def __enter__(self) -> Profile:
        if self._session is not None:
            raise UserError("this profile() is in use already: make one for each block")
        self.note = self._reason_not_to()
        if self.note is None:
            self._begin()
        if self.note is not None:
            complain(f"profile(): {self.note}")
        return self

    def _reason_not_to(self) -> str | None:
        from ddlprof.collect.current import current

        if os.environ.get(DISABLE_VARIABLE, "0") not in ("", "0"):
            return f"nothing is profiled, as {DISABLE_VARIABLE} is set"
        under_way = current()
        if under_way is not None:
            self.directory = under_way.directory
            return f"this process is being profiled already, into {self.directory}: the block is part of that run"
        job = ParentRun.from_environment()
        if job is not None:
            self.directory = Path(job.directory) if job.directory else None
            return "this process was started by ddlprof run: the block is part of that run"
        return None

    def _begin(self) -> None:
        try:
            from ddlprof.collect.session import start

            self._session = start(self._options, self._name, [self._name])
            if _has_process_group():  # made earlier, so no hook will report it
                self._session.on_process_group()
        except UserError:
            raise
        except Exception as error:  # an error of the profiler must not end the training
            self.note = f"nothing is profiled: {type(error).__name__}: {error}"
            return
        self.directory = self._session.directory

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is None or session.pid != getpid():
            return
        status, code = _how_it_ended(error)
        try:
            session.finish(status, code)
        except Exception as failure:
            complain(f"profile(): the end of the run is not recorded: {type(failure).__name__}: {failure}")
        self.directory = session.directory

    @cached_property
    def run(self) -> Run:
        """The run, after the block has ended. Raises `UserError` if there is none."""
        from ddlprof.api import load

        if self._session is not None:
            raise UserError("the block is still running: read the run after it")
        if self.directory is None:
            raise UserError(f"no run: {self.note or 'the block has not run'}")
        shorter = os.path.relpath(self.directory)
        return load(self.directory if shorter.startswith(os.pardir) else shorter)

    def report(self) -> None:
        """Prints the card of the run."""
        sys.stdout.write(str(self))

    def __str__(self) -> str:
        """The card; one line if there is no run."""
        try:
            return str(self.run)
        except UserError as error:
            return f"ddlprof  {error}\n"

    def __repr__(self) -> str:
        return f"<ddlprof profile {self.directory or self.note or 'of nothing yet'}>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        from ddlprof.report.run.notebook import as_note

        try:
            return self.run._repr_html_()
        except UserError as error:
            return as_note(str(error))


def _name_of_program() -> str:
    """The name of the script; `notebook` in a notebook, whose program is its kernel."""
    if "ipykernel" in sys.modules or not sys.argv or not sys.argv[0] or sys.argv[0] == "-c":
        return "notebook" if "ipykernel" in sys.modules else "python"
    return Path(sys.argv[0]).stem or "python"


def _has_process_group() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _how_it_ended(error: BaseException | None) -> tuple[str, int]:
    """The status of the run and an exit code as `ddlprof run` would record them."""
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return "ok", 0
    if isinstance(error, SystemExit):
        return "exit", error.code if isinstance(error.code, int) else 1
    return ("interrupt", 130) if isinstance(error, KeyboardInterrupt) else ("exception", 1)
