"""The goodput of a run in its report; what it needs is imported for runs of several attempts only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt
    from ddlprof.report.goodput.data import GoodputReport


def goodput_of_attempts(name: str, attempts: Sequence[Attempt]) -> GoodputReport | None:
    """The goodput over all attempts, without prices; None where there is one attempt only."""
    if len(attempts) < 2:
        return None
    from ddlprof.analysis.trials import trials_of
    from ddlprof.report.goodput.data import goodput_report  # it needs formulas of the recommender

    return goodput_report(name, trials_of(attempts))
