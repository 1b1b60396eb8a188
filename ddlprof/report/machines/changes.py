"""Changes of the user's own layer of the catalogue: by `instances refresh`, and by `instances measured`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.text import text_of
from ddlprof.base.units import count, significant
from ddlprof.instance_catalog import LinkFact
from ddlprof.report.json_csv import csv_text, json_text
from ddlprof.report.text import aligned

if TYPE_CHECKING:
    from ddlprof.instance_catalog.refresh import RefreshReport

_KINDS = {"types": "types", "offerings": "offerings", "on_demand": "on-demand prices", "spot": "spot prices"}
LINK_COLUMNS = ("machine", "what", "value", "unit", "measured_at", "source", "notes")
"""The columns of the CSV file of links, and keys of the JSON objects."""


def refreshed(report: RefreshReport) -> str:
    """One line for each region and kind of fact, then the rejected answers, and the files that were replaced."""
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


def refreshed_as_json(report: RefreshReport) -> str:
    """The same, with the fields of `RefreshReport`."""
    return json_text(
        {
            "ok": report.ok,
            "outcomes": [asdict(outcome) for outcome in report.outcomes],
            "contradictions": [asdict(contradiction) for contradiction in report.contradictions],
            "files": [str(path) for path in report.files],
        }
    )


def added(facts: Sequence[LinkFact], overlay: Path) -> str:
    """The facts that were added, and the file they are in now."""
    rows = [["machine", "what", "value", "unit", "notes"]]
    rows += [[fact.machine, fact.what, significant(fact.value, 4), fact.unit, fact.notes] for fact in facts]
    return text_of([*aligned(rows, right={2}), f"Added to {overlay}"])


def added_as_json(facts: Sequence[LinkFact], overlay: Path) -> str:
    """The same, with all that is stored of a fact."""
    return json_text({"overlay": str(overlay), "added": [_link(fact) for fact in facts]})


def added_as_csv(facts: Sequence[LinkFact]) -> str:
    """One row for each fact that was added."""
    return csv_text(LINK_COLUMNS, [_link(fact) for fact in facts])


def _link(fact: LinkFact) -> dict[str, object]:
    return {name: getattr(fact, name) for name in LINK_COLUMNS}
