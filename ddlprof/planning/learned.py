"""The corrections that `ddlprof learn` made of a team's own runs, for commands that predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlprof.planning.job import DescribedJob
    from ddlprof.recommender import Learned

FILE = "learned.json"
"""The name under which corrections are found in the user's own layer of the catalogue."""


def load_job_with(
    learned: Path | None, runs: Sequence[str], batches: Sequence[int] = (), other_jobs: Sequence[str] = ()
) -> DescribedJob:
    """As `load_job`, with the corrections of `learned_for`."""
    from ddlprof.planning.job import load_job

    return replace(load_job(runs, batches, other_jobs), learned=learned_for(learned))


def learned_for(path: Path | None) -> Learned | None:
    """The corrections in a file; without a path those in the user's own layer of the catalogue, if there are any.

    Raises PredictionError for what is no such file, or one of another version.
    """
    from ddlprof.instance_catalog import default_overlay
    from ddlprof.recommender.learned import read_learned

    if path is not None:
        return read_learned(path)
    own = default_overlay() / FILE
    return read_learned(own) if own.exists() else None
