"""A run on one page for programs: the file `summary.json` of a run directory, which `ddlprof fleet` reads.

Written at the end of a run, so that thousands of runs can be listed without loading their steps. What no step tells,
such as prices, is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from ddlprof.base.files import replace_whole

SUMMARY_NAME = "summary.json"
SUMMARY_SCHEMA = 1


@dataclass(frozen=True)
class RunSummary:
    """One run, as a list of runs shows it. None: not known, or not measured."""

    job: str
    """The short name of the job, as in the manifest; empty where that is lost, like the next field."""
    job_id: str
    model: str | None
    created_unix_ns: int
    """When the first rank started."""
    ended_unix_ns: int
    """The latest moment that any rank's file tells about."""
    status: str
    """How the last attempt ended: ok, stopped, or as the first rank did that failed (`torn`: it did not say)."""
    world_size: int
    ranks: int
    """The ranks of the attempt that the times are about; fewer than `world_size` where files are elsewhere."""
    hosts: int | None
    device: str
    """The device: `cpu`, or the accelerator's name."""
    instance_type: str | None
    """The type of rank 0's machine."""
    attempts: int
    steps: int | None
    """The value of the rank with the most, like the next field; of the attempt with the most steady steps."""
    steady_steps: int | None
    wall_s: float | None
    """The time from the start of the first rank to the last word of any, over all attempts."""
    rank_hours: float | None
    """`wall_s` times the ranks of each attempt; GPU-hours where `device` is no `cpu`."""
    machine_hours: float | None
    """`wall_s` times the machines of each attempt."""
    step_s: float | None
    """The mean steady step."""
    step_error_s: float | None
    """The standard deviation of the error of `step_s`, as far as the run's own steps show it; None: too few steps."""
    step_error_freedom: float | None
    """The degrees of freedom that it is known with."""
    step_noise: float | None
    """How the mean steps of equal runs differ, a standard deviation as a share of the step."""
    classes_s: dict[str, float | None]
    """The means of the classes and their parts."""
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
    """A fingerprint of the script's arguments: equal for equal ones, and tells nothing else about them."""
    file_bytes: int
    """The size of the ranks' files that this was made of: where they have grown since, it is out of date."""
    schema: int = field(default=SUMMARY_SCHEMA)

    @property
    def gpu_hours(self) -> float | None:
        """`rank_hours`, of ranks on an accelerator."""
        return None if self.device in ("", "cpu") else self.rank_hours

    def write(self, directory: Path) -> None:
        """Replaces the file of `directory` atomically. Raises OSError where it cannot be written."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        replace_whole(directory / SUMMARY_NAME, text)


def fingerprint(arguments: Sequence[str]) -> str:
    """`RunSummary.arguments` of the script's arguments."""
    return sha256("\0".join(arguments).encode(errors="replace")).hexdigest()[:16]
