"""A report as a notebook shows it: a small piece of HTML that needs nothing else and suits light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ddlprof.base.text import plain
from ddlprof.base.units import Scale, percent, scale_for
from ddlprof.model.classes import TABLE
from ddlprof.report.run import text as card
from ddlprof.report.run.data import ReportData

_COLOURS = ("#4c9a5f", "#c98a1b", "#a05cb0", "#4a7fc1", "#2f9c95", "#c2504f", "#8a8a8a")
"""Colours that are readable on white and on black."""
_BAR_PX = 240
_CELL = "padding:1px 12px 1px 0;text-align:right;border:0;background:none"


def render(report: ReportData) -> str:
    """The breakdown, the verdict and, folded, the card."""
    step = report.step_s
    parts = [f"<div><b>ddlprof</b> {_text(report.name)}"]
    if step:
        parts.append(f": {_text(scale_for(step).time(step))} a step, mean of {report.steady_steps:,} steady steps")
        parts.append(f'<table style="border-collapse:collapse">{"".join(_rows(report, scale_for(step)))}</table>')
    else:
        parts.append(": no step was measured")
    verdict = report.verdict
    if verdict is not None:
        said = verdict.headline or verdict.name
        parts.append(f"<div><b>{_text(said)}</b>: {_text(verdict.why)}<br>next: {_text(verdict.next)}</div>")
    text = "\n".join(_text(line) for line in card.render(report).splitlines())
    parts.append(f'<details><summary>Card</summary><pre style="white-space:pre-wrap">{text}</pre></details></div>')
    return "".join(parts)


def as_note(text: str) -> str:
    """One sentence where there is no report."""
    return f"<div><b>ddlprof</b> {_text(text)}</div>"


def _rows(report: ReportData, scale: Scale) -> Iterator[str]:
    for each, colour in zip(TABLE, _COLOURS, strict=False):
        time = report.times[each.name]
        if time.mean_s is None:
            cells = f'<td style="{_CELL}"></td><td style="{_CELL}"></td><td style="{_CELL}">not measured</td>'
        else:
            share = time.share or 0.0
            bar = f"display:inline-block;height:0.8em;width:{share * _BAR_PX:.0f}px;background:{colour}"
            cells = (
                f'<td style="{_CELL}">{_text(scale.time(time.mean_s))}</td>'
                f'<td style="{_CELL}">{_text(percent(share))}</td>'
                f'<td style="{_CELL};text-align:left"><span style="{bar}"></span></td>'
            )
        yield f'<tr style="background:none"><th style="{_CELL};text-align:left">{_text(each.name)}</th>{cells}</tr>'


def _text(text: str) -> str:
    return escape(plain(text))
