"""Changes of the user's own layer of the catalogue: by `instances refresh`, and by `instances measured`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ddlprof.base.text import text_of
from ddlprof.base.units import count, significant
from ddlprof.instance_catalog import LinkFact
from ddlprof.report.json_csv import json_text
from ddlprof.report.table import Column, Table, fields

if TYPE_CHECKING:
    from ddlprof.instance_catalog.refresh import RefreshOutcome, RefreshReport

_KINDS = {"types": "types", "offerings": "offerings", "on_demand": "on-demand prices", "spot": "spot prices"}
LINKS = Table[LinkFact](*fields("machine", "what", "value", "unit", "measured_at", "source", "notes"))
_ADDED = Table[LinkFact](
    Column("machine", "machine", words=True),
    Column("what", "what", words=True),
    Column("value", lambda fact: significant(fact.value, 4)),
    Column("unit", "unit", words=True),
    Column("notes", "notes", words=True),
)
_REST: tuple[Column[RefreshOutcome], ...] = (
    Column("what", lambda outcome: _KINDS.get(outcome.kind, outcome.kind), words=True),
    Column("rows", "rows"),
    Column("", lambda each: f"failed; the old ones keep their date: {each.error}" if each.error else "", words=True),
)
_REGIONS: Table[RefreshOutcome] = Table(Column("region", "region", words=True), *_REST)
_CLOUDS: Table[RefreshOutcome] = Table(Column("cloud", "cloud", words=True), *_REST)
_MOST_LINES, _FEW = 20, 5


def refreshed(report: RefreshReport) -> str:
    """One line for each region and kind of fact, or each cloud, then what was rejected, moved far, is new or unknown,
    and the files that were replaced."""
    lines = (_CLOUDS if any(outcome.cloud for outcome in report.outcomes) else _REGIONS).lines(report.outcomes)
    if report.contradictions:
        lines += ["", f"Not believed ({count(len(report.contradictions), 'answer')}):"]
        lines += [f"  {contradiction}" for contradiction in report.contradictions]
    if report.moves:
        from ddlprof.instance_catalog.refresh.checks import SHOWN_CHANGE

        lines += ["", f"Moved by more than a factor of {SHOWN_CHANGE:g} ({count(len(report.moves), 'price')}):"]
        lines += [f"  {move}" for move in report.moves[:_MOST_LINES]]
        if len(report.moves) > _MOST_LINES:
            lines.append(f"  and {len(report.moves) - _MOST_LINES} more: --format json has all")
    if report.added:
        lines += ["", f"New, their links and network unknown ({len(report.added)}): {_some(report.added)}"]
    if report.left_out:
        lines += ["", f"Left out, as it is not known what they are ({len(report.left_out)}): {_some(report.left_out)}"]
    lines += ["", *(f"Wrote {path}" for path in report.files)] if report.files else []
    return text_of(lines)


def refreshed_as_json(report: RefreshReport) -> str:
    """The same, with the fields of `RefreshReport`."""
    return json_text(
        {
            "ok": report.ok,
            "outcomes": [asdict(outcome) for outcome in report.outcomes],
            "contradictions": [asdict(contradiction) for contradiction in report.contradictions],
            "moves": [asdict(move) for move in report.moves],
            "added": report.added,
            "left_out": report.left_out,
            "files": [str(path) for path in report.files],
        }
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_FEW]) + (", ..." if len(names) > _FEW else "")


def added(facts: Sequence[LinkFact], overlay: Path) -> str:
    """The facts that were added, and the file they are in now."""
    return text_of([*_ADDED.lines(facts), f"Added to {overlay}"])


def added_as_json(facts: Sequence[LinkFact], overlay: Path) -> str:
    """The same, with all that is stored of a fact."""
    return json_text({"overlay": str(overlay), "added": LINKS.records(facts)})
