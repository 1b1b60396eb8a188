"""What `ddlprof instances refresh` and `measured` changed in the user's own layer of the catalogue, as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.units import count, significant
from ddlprof.report.columns import aligned
from ddlprof.report.lines import text_of
from instance_catalog import LinkFact

if TYPE_CHECKING:
    from instance_catalog.refresh import RefreshReport

_KINDS = {"types": "types", "offerings": "offerings", "on_demand": "on-demand prices", "spot": "spot prices"}


def refreshed(report: RefreshReport) -> str:
    """One line for each region and kind of fact, then answers not believed, and the files that were replaced."""
    rows = [["region", "what", "rows", ""]]
    for outcome in report.outcomes:
        result = f"failed; the old ones keep their date: {outcome.error}" if outcome.error else ""
        rows.append([outcome.region, _KINDS.get(outcome.kind, outcome.kind), str(outcome.rows), result])
    lines = aligned(rows, right={2})
    if report.contradictions:
        lines += ["", f"Not believed ({count(len(report.contradictions), 'answer')}):"]
        lines += [f"  {contradiction}" for contradiction in report.contradictions]
    lines += ["", *(f"Wrote {path}" for path in report.files)] if report.files else []
    return text_of(lines)


def added(facts: Sequence[LinkFact], overlay: Path) -> str:
    """The facts that were added, and the file they are in now."""
    rows = [["machine", "what", "value", "unit", "notes"]]
    rows += [[fact.machine, fact.what, significant(fact.value, 4), fact.unit, fact.notes] for fact in facts]
    return text_of([*aligned(rows, right={2}), f"Added to {overlay}"])
