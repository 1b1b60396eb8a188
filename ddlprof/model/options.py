"""What `ddlprof run` was asked for, handed from the command line to the training process by environment."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field

OPTIONS_VARIABLE = "DDLPROF_OPTIONS"
DISABLE_VARIABLE = "DDLPROF_DISABLE"
SPARSITY_VARIABLE = "DDLPROF_SPARSITY"
"""Holds what `ddlprof sparsity` asks for (`ddlprof.model.sparsity`)."""


@dataclass
class Options:
    """Options of one profiled process; the defaults are those of `ddlprof run`."""

    out: str | None = None
    """The run directory chosen by the user or the launcher; None: the default name."""
    quiet: bool = False
    stop_after: int | None = None
    """The number of steady steps to measure before the training goes on untouched; None: no limit."""
    step_optimizer: str | None = None
    calibrate: bool = True
    card: bool = True
    """Whether to print the card at the end; off in workers of our own launcher, which prints it itself."""
    job_id: str | None = None
    """Set by our own launcher so that its workers share one run directory."""
    data_calls: list[str] = field(default_factory=list)
    """Functions whose calls are waits for data, each in the form of `ddlprof.model.data_call`."""
    profiler_windows: int = 0
    """The most short windows of torch's profiler to open on an accelerator."""
    time_collectives: bool = False
    """Whether torch times NCCL's collectives."""
    live: bool = False
    """Whether to show the run while it trains; off in workers of our own launcher, which shows it itself."""

    def to_environment(self) -> None:
        """Stores the options for the process that replaces this one, or for its children."""
        os.environ[OPTIONS_VARIABLE] = json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Options:
        """The options stored by `to_environment`, or the defaults; the variable is removed."""
        text = os.environ.pop(OPTIONS_VARIABLE, None)
        return cls(**json.loads(text)) if text else cls()
