"""What a run hands down, by environment, to the processes that its script or launcher starts.

A directory of ours goes to the front of PYTHONPATH: its `sitecustomize.py` makes Python look at `DDLPROF_JOB`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from ddlprof.model.experiment import Experiment
from ddlprof.model.options import Options

JOB_VARIABLE = "DDLPROF_JOB"
PATH_VARIABLE = "PYTHONPATH"
STARTUP = str(Path(__file__).parents[1] / "launch" / "startup")
"""The directory with our `sitecustomize.py`."""


@dataclass(frozen=True)
class ParentRun:
    """The run that a process may become a rank of."""

    options: Options
    """The options of the run."""
    name: str | None = None
    """The short name of the job; None: that of the script which trains."""
    job_id: str = ""
    directory: str | None = None
    """The run directory; None where only rank 0 knows."""
    experiment: Experiment | None = None
    top: int = 0
    """The process that prints the card."""
    optimizers_count: bool = True
    """Whether a process that makes an optimizer becomes a rank; False below the ranks of a launcher."""

    def environment(self) -> dict[str, str]:
        """The variables by which the processes started from here find it."""
        path = os.environ.get(PATH_VARIABLE, "")
        rest = [entry for entry in path.split(os.pathsep) if entry != STARTUP] if path else []
        return {JOB_VARIABLE: json.dumps(asdict(self)), PATH_VARIABLE: os.pathsep.join([STARTUP, *rest])}

    @classmethod
    def from_environment(cls) -> ParentRun | None:
        """The job that this process was started in, or None."""
        text = os.environ.get(JOB_VARIABLE)
        if not text:
            return None
        value = json.loads(text)
        experiment = value["experiment"]
        options, experiment = Options(**value.pop("options")), experiment and Experiment(**value.pop("experiment"))
        return cls(**{**value, "options": options, "experiment": experiment})
