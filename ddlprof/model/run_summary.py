"""A run in one small file for programs: `summary.json` of a run directory, which `ddlprof fleet` reads.

Written at the end of a run, so that thousands of runs can be listed without loading their steps. It contains nothing
that is not in the run, such as prices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from ddlprof.base.files import replace_whole
from ddlprof.model.trial import AttemptFacts

SUMMARY_NAME = "summary.json"
SUMMARY_SCHEMA = 1


@dataclass(frozen=True)
class RunSummary:
    """One run as an entry of a list of runs. None: not known, or not measured."""

    job: str
    """The short name of the job, as in the manifest; empty, like the next field, if there is no manifest."""
    job_id: str
    model: str | None
    created_unix_ns: int
    """The unix time in ns at which the first rank started."""
    ended_unix_ns: int
    """The latest unix time in ns in any rank's file."""
    status: str
    """How the last attempt ended: ok, stopped, or as the first rank that failed (`torn`: it did not tell)."""
    world_size: int
    ranks: int
    """The ranks of the attempt to which the times refer. Fewer than `world_size` if other files are elsewhere."""
    hosts: int | None
    device: str
    """The device: `cpu`, or the accelerator's name."""
    instance_type: str | None
    """The type of rank 0's machine."""
    attempts: int
    steps: int | None
    """The largest number of steps of a rank; so in the next field. Of the attempt with most steady steps."""
    steady_steps: int | None
    wall_s: float | None
    """Seconds from the start of the first rank to the last entry of any rank, over all attempts."""
    rank_hours: float | None
    """`wall_s` times the ranks of each attempt, in hours: GPU-hours unless `device` is `cpu`."""
    machine_hours: float | None
    """`wall_s` times the machines of each attempt, in hours."""
    step_s: float | None
    """The mean steady step in seconds."""
    step_error_s: float | None
    """The standard error of `step_s` in seconds, from the run's own steps; None: too few steps."""
    step_error_freedom: float | None
    """The degrees of freedom of that standard error."""
    step_noise: float | None
    """The standard deviation of the mean steps of equal runs, as a share of the step."""
    classes_s: dict[str, float | None]
    """The means of the classes and their parts, in seconds."""
    class_rank_hours: dict[str, float | None]
    """The hours of all ranks in each class: the number of a rank's steps times its mean, over all attempts."""
    verdict: str | None
    verdict_severity: str | None
    findings: list[str]
    """The names of the rules that found something."""
    strategy: str | None
    precision: str | None
    global_batch: int | None
    versions: dict[str, str]
    arguments: str
    """A fingerprint of the script's arguments: equal for equal arguments, and nothing can be read from it."""
    file_bytes: int
    """The size of the ranks' files when this was made, in bytes. If they have grown since, it is out of date."""
    trials: list[AttemptFacts] = field(default_factory=list)
    """The attempts in a few numbers each, of which the goodput is made; empty in summaries of older versions."""
    host_names: list[str] = field(default_factory=list)
    """The names of the machines, of the attempt to which the times refer."""
    late_host: str | None = None
    """The name of the machine that has the rank for which the others wait."""
    moved: list[str] = field(default_factory=list)
    """The counters of that machine, or its device, that moved while it was late (`ddlprof.model.health`)."""
    schema: int = field(default=SUMMARY_SCHEMA)

    @property
    def gpu_hours(self) -> float | None:
        """`rank_hours` if the ranks used an accelerator; else None."""
        return None if self.device in ("", "cpu") else self.rank_hours

    def write(self, directory: Path) -> None:
        """Replaces the file of `directory` atomically. Raises OSError where it cannot be written."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        replace_whole(directory / SUMMARY_NAME, text)


def fingerprint(arguments: Sequence[str]) -> str:
    """The value of `RunSummary.arguments` for these arguments."""
    return sha256("\0".join(arguments).encode(errors="replace")).hexdigest()[:16]
