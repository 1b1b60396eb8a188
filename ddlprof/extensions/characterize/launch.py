"""The experiments of `ddlprof characterize`, each of which is a `ddlprof run` of its own.

The runs are separate processes, one after the other, in the user's working directory. What the script prints goes to a
file beside the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ddlprof.base.errors import UserError
from ddlprof.base.package import COMMAND
from ddlprof.extensions.characterize.experiment import ALL_REPLAYED, COLD, EXPERIMENTS, ONE_REPLAYED, WARM, Experiment
from ddlprof.extensions.characterize.model import load_reads
from ddlprof.launch.target import LaunchTarget, interpreter_options
from ddlprof.model.options import DISABLE_VARIABLE

WARMING = "warming"
"""The run before those with real input: it fills the page cache for the warm one and finds the cold one's files."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of an experiment. `repeat` counts from 1."""

    name: str
    ranks: int
    experiment: Experiment
    repeat: int = 1

    @property
    def folder(self) -> str:
        """The folder below the output directory; the file for the script's output has the same name."""
        return self.name if self.repeat == 1 else f"{self.name}-{self.repeat}"

    def describe(self) -> str:
        """The run in words, for a person who waits."""
        real = {WARM: "real input, warm page cache", COLD: "real input, cold page cache"}
        what = "replayed input" if self.experiment.replayed else real.get(self.name, "real input, not compared")
        return f"{self.folder}: {self.ranks} {'rank' if self.ranks == 1 else 'ranks'}, {what}"


def plan(ranks: int, steps: int, repeats: int, skipped: Collection[str]) -> list[PlannedRun]:
    """All runs in order.

    Repeats alternate between experiments, so that a machine that slows down affects all of them.
    """
    experiments = {
        ONE_REPLAYED: (1, Experiment(steps, replayed=True)),
        ALL_REPLAYED: (ranks, Experiment(steps, replayed=True)),
        WARM: (ranks, Experiment(steps)),
        COLD: (ranks, Experiment(steps, drop_cache=True)),
    }
    warming = [PlannedRun(WARMING, ranks, Experiment(steps))] if {WARM, COLD} - set(skipped) else []
    names = [name for name in EXPERIMENTS if name not in skipped and (name != ONE_REPLAYED or ranks > 1)]
    repeated = [PlannedRun(name, *experiments[name], repeat) for repeat in range(1, repeats + 1) for name in names]
    return warming + repeated


def run(planned: PlannedRun, target: LaunchTarget, directory: Path) -> None:
    """Runs the experiment to its end. Raises UserError if the script fails."""
    words = ["run", "--quiet", "--no-calibrate", "--out", str(directory / planned.folder)]
    if planned.name == ONE_REPLAYED or planned.ranks > 1:  # a script for one rank may not work with a launcher
        words += ["--nproc-per-node", str(planned.ranks)]
    if target.module:
        words.append("-m")
    if planned.experiment.drop_cache:
        from ddlprof.extensions.characterize.collect.reads import drop_from_cache

        reads = load_reads(directory / WARMING)
        drop_from_cache(reads.files if reads else ())
    output = directory / f"{planned.folder}.log"
    with output.open("xb") as file:
        code = subprocess.run(
            [sys.executable, *interpreter_options(sys.orig_argv, sys.argv), COMMAND, *words, *target.words],
            env={**os.environ, DISABLE_VARIABLE: "0", **planned.experiment.environment()},  # disabled, it had no end
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code:
        raise UserError(f"the script failed in {planned.folder} (exit code {code}): see {output}")
