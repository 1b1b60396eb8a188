"""The part of a run's page that says why it hung."""

from __future__ import annotations

from ddlprof.analysis.hang_facts import BUSY, Hang
from ddlprof.analysis.hang_words import advice, does, headline, label, most_telling
from ddlprof.base.units import short_time
from ddlprof.report.html.element import Html, table, tag
from ddlprof.report.html.shell import Section, verdict_box


def box(found: Hang) -> Html:
    """The finding as the verdict on the job, which comes before that on its steps."""
    since = f"no step had ended for {short_time(found.for_s)}"
    return verdict_box(headline(found), label(found).lower(), "critical", [("Why", since), ("Next", advice(found))])


def section(found: Hang) -> Section:
    """The finding, what to do, and what every rank does."""
    rows = [[str(line.rank), does(line), line.place, short_time(line.for_s)] for line in most_telling(found)]
    stacks = [
        tag("details", tag("summary", f"Stack of rank {line.rank}"), tag("pre", "\n".join(line.stack)))
        for line in most_telling(found)
        if line.stack
    ]
    body = [
        *([tag("p", f"{headline(found)}. {advice(found).capitalize()}.")] if found.kind == BUSY else []),
        table("What every rank did", ["Rank", "Does", "At", "For"], rows, left={0, 1, 2}),
        *stacks,
    ]
    return Section("hang", label(found), body)
