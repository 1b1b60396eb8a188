"""The card of a hang: why, what to do, and what every rank does."""

from __future__ import annotations

from collections.abc import Iterator

from ddlprof.analysis.hang_facts import BUSY, Hang
from ddlprof.analysis.hang_words import advice, does, headline, label, most_telling
from ddlprof.base.text import text_of
from ddlprof.base.units import count, short_time
from ddlprof.report.text import aligned

_MOST_FRAMES = 6


def card(found: Hang) -> str:
    """The card of a hang, ending with a line end."""
    return text_of(_card(found))


def _card(found: Hang) -> Iterator[str]:
    word = "no hang" if found.kind == BUSY else label(found).upper()
    yield f"{word}: {headline(found)}"
    steps = count(found.step, "step")
    yield f"no step has ended for {short_time(found.for_s)}, after {steps}" if found.for_s else f"after {steps}"
    yield f"next: {advice(found)}"
    yield ""
    shown = most_telling(found)
    yield from aligned([[f"rank {line.rank}", does(line), line.place] for line in shown])
    if len(found.lines) > len(shown):
        yield f"and {len(found.lines) - len(shown)} more"
    for line in shown[:2]:
        if line.stack:
            yield ""
            yield f"stack of rank {line.rank}, innermost first:"
            yield from (f"  {frame}" for frame in line.stack[:_MOST_FRAMES])
