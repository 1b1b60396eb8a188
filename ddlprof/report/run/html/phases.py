"""The section of the page about the phases of a training, where it has several."""

from __future__ import annotations

from ddlprof.analysis.phases import PhaseLine
from ddlprof.base.units import percent, scale_for
from ddlprof.report.html.element import joined, tag
from ddlprof.report.html.shell import Section
from ddlprof.report.run.html.subject import Subject
from ddlprof.report.table import Column, Table


def section(subject: Subject) -> Section:
    """The phases side by side, and which one the page is of."""
    report = subject.report
    table = Table[PhaseLine](
        Column("Phase", "number"),
        Column("Model", "model", words=True),
        Column("Optimizer", "optimizer", words=True),
        Column("Parameters", "parameters"),
        Column("Times", "phases"),
        Column("First step", lambda line: line.first_steps[0]),
        Column("Steps", "steps"),
        Column("Mean step", lambda line: None if line.mean_s is None else scale_for(line.mean_s).time(line.mean_s)),
        Column("Of all steps' time", lambda line: percent(line.share)),
    )
    said = f"Means, verdict and findings of this page are those of phase {report.phase}"
    said += f"; of another: ddlprof report {report.run} --phase N." if len(report.phases) > 1 else "."
    return Section("phases", "Phases of the training", joined(tag("p", said), table.html("The phases", report.phases)))
