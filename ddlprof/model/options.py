"""The options of `ddlprof run`, and how processes that it starts receive them, through environment variables.

`Options` are those of the command line; a `DataCall` is the value of one of them. `AddedHooks` are those of an
extension. `ParentRun` is the run of which a process may become a rank.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ddlprof.base.errors import UserError

OPTIONS_VARIABLE = "DDLPROF_OPTIONS"
DISABLE_VARIABLE = "DDLPROF_DISABLE"


@dataclass
class Options:
    """Options of one profiled process; the defaults are those of `ddlprof run`."""

    out: str | None = None
    """The run directory chosen by the user or the launcher; None: a directory with the default name."""
    quiet: bool = False
    stop_after: int | None = None
    """The number of steady steps to measure, after which the training goes on unmeasured; None: no limit."""
    step_optimizer: str | None = None
    calibrate: bool = True
    card: bool = True
    """Whether to print the card at the end. Off in workers of our own launcher, which prints it."""
    job_id: str | None = None
    """Set by our own launcher so that its workers share one run directory."""
    data_calls: list[str] = field(default_factory=list)
    """Functions whose calls are waits for data, each in the form of `DataCall`."""
    profiler_windows: int = 0
    """The most short windows of torch's profiler to open on an accelerator."""
    time_collectives: bool = False
    """Whether torch times NCCL's collectives."""
    live: bool = False
    """Whether to show the run while it trains. Off in workers of our own launcher, which shows it."""

    hang_after: float | None = None
    """The seconds without an end of a step after which a rank says what it does; None: the default."""

    def to_environment(self) -> None:
        """Stores the options for the process that replaces this one, or for its children."""
        os.environ[OPTIONS_VARIABLE] = json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Options:
        """The options stored by `to_environment`, or the defaults; the variable is removed."""
        text = os.environ.pop(OPTIONS_VARIABLE, None)
        return cls(**json.loads(text)) if text else cls()


ADDED_VARIABLE = "DDLPROF_ADDED"


@dataclass(frozen=True)
class AddedHooks:
    """Hooks that an extension adds to those of a run."""

    name: str
    """What stands in a note if they cannot be installed."""
    module: str
    """Its `install(context, settings, directory, rank)` installs them, after all others."""
    settings: dict[str, Any]

    def environment(self) -> dict[str, str]:
        """The environment variables by which a run finds them."""
        return {ADDED_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> AddedHooks | None:
        """The hooks that are added in this process, if any; the variable is removed."""
        text = os.environ.pop(ADDED_VARIABLE, None)
        return cls(**json.loads(text)) if text else None


INSTEAD_VARIABLE = "DDLPROF_INSTEAD"


@dataclass(frozen=True)
class Instead:
    """What an extension does in a process in place of measuring its steps."""

    module: str
    """Its `start` is called before the script begins, with what was requested by keyword; it raises nothing."""
    request: dict[str, Any]

    def environment(self) -> dict[str, str]:
        """The environment variable by which the process finds it."""
        return {INSTEAD_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Instead | None:
        """What this process is to do, if anything; the variable is removed."""
        text = os.environ.pop(INSTEAD_VARIABLE, None)
        return cls(**json.loads(text)) if text else None


JOB_VARIABLE = "DDLPROF_JOB"
PATH_VARIABLE = "PYTHONPATH"
STARTUP = str(Path(__file__).parents[1] / "launch" / "startup")
"""The directory with our `sitecustomize.py`."""


@dataclass(frozen=True)
class ParentRun:
    """The run of which a process may become a rank.

    Our startup directory is put at the front of PYTHONPATH; its `sitecustomize.py` makes Python look at `DDLPROF_JOB`.
    """

    options: Options
    name: str | None = None
    """The short name of the job; None: that of the script that trains."""
    job_id: str = ""
    directory: str | None = None
    """The run directory; None if only rank 0 knows it."""
    added: AddedHooks | None = None
    top: int = 0
    """The number of the process that prints the card."""
    optimizers_count: bool = True
    """Whether a process that makes an optimizer becomes a rank. False below the ranks of a launcher."""

    def environment(self) -> dict[str, str]:
        """The environment variables by which processes started from here find the run."""
        path = os.environ.get(PATH_VARIABLE, "")
        rest = [entry for entry in path.split(os.pathsep) if entry != STARTUP] if path else []
        return {JOB_VARIABLE: json.dumps(asdict(self)), PATH_VARIABLE: os.pathsep.join([STARTUP, *rest])}

    @classmethod
    def from_environment(cls) -> ParentRun | None:
        """The run in which this process was started; None if there is none."""
        text = os.environ.get(JOB_VARIABLE)
        if not text:
            return None
        value = json.loads(text)
        added = value["added"]
        return cls(**{**value, "options": Options(**value["options"]), "added": added and AddedHooks(**added)})


MAIN = "__main__"
_LOCALS = ".<locals>"


class DataCall(NamedTuple):
    """The function whose calls are waits for data, as `--data-call MODULE:FUNCTION` names it.

    Both names may have dots: `package.module`, `Class.method`, `main.get_batch` for a function inside `main`.
    """

    module: str
    function: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"

    @classmethod
    def parse(cls, text: str) -> DataCall:
        """Parses MODULE:FUNCTION. Raises UserError for a text of another form."""
        module, _, function = text.partition(":")
        function = function.replace(_LOCALS, "")  # parts of a function's __qualname__
        if not all(word.isidentifier() for name in (module, function) for word in name.split(".")):
            raise UserError(
                f"--data-call {text}: give MODULE:FUNCTION, such as package.data:get_batch, "
                f"{MAIN}:get_batch for a function of the script itself, or package.data:Batches.__next__"
            )
        return cls(module, function)
