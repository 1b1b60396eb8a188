"""The rest of the page: the phases, the whole job, notes, the environment, and how to read it all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddlprof.analysis.job_time import JOB_PARTS, JobTime
from ddlprof.analysis.phases import PhaseLine
from ddlprof.base.units import count, percent, scale_for, time_in_one_unit
from ddlprof.report.html.chart import chart
from ddlprof.report.html.element import Content, Html, bullets, facts, joined, table, tag
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.run.html.subject import Subject
from ddlprof.report.table import Column, Table

_PARTS = {
    "start_up": "from the start to the first step",
    "steps": "training, all else taken out",
    "warm_up": "what the first steps took more than the steady ones",
    "epoch_start": "waiting for the first batches of epochs, beyond an ordinary wait",
    "evaluation": "evaluating",
    "checkpoint": "saving checkpoints",
    "compilation": "compiling",
    "profiling": "profiler windows of ddlprof",
    "idle": "what else unusual steps took more: code of the script's own",
    "end": "after the last step",
}
_COLOURS = {name: f"series-{number}" for number, name in enumerate(JOB_PARTS, 1)}
_UNTIL = {
    "end": "the end of the job",
    "entry": "its last entry, as it was killed or still runs",
    "stopped": "the end of measuring, after which the job went on",
}


def phases(subject: Subject) -> Section:
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


def whole_job(subject: Subject) -> Section | Absent:
    """The wall time of the job, part by part."""
    title = "The whole job"
    job = subject.report.job
    if job is None or not job.wall_s:
        return Absent(title, "the wall time of this run is not known part by part")
    parts = {name: seconds for name in JOB_PARTS if (seconds := job.parts_s.get(name)) is not None}
    rows: list[list[Content]] = [
        [name.replace("_", " "), _PARTS.get(name, ""), *_amount(job, name)] for name in JOB_PARTS
    ]
    rows.append(["whole job", "", time_in_one_unit(job.wall_s), "100 %"])
    data = {
        "unit": "s",
        "step": round(job.wall_s, 3),
        "parts": [
            {
                "name": _COLOURS[name],
                "label": name.replace("_", " "),
                "value": round(seconds, 4),
                "parts": [],
            }
            for name, seconds in parts.items()
            if seconds > 0
        ],
    }
    most = sorted(parts, key=lambda name: -parts[name])[:3]
    words = ", ".join(f"{name.replace('_', ' ')} {time_in_one_unit(parts[name])}" for name in most)
    figure = chart(
        "job", "mean", data,
        caption=f"Where the {time_in_one_unit(job.wall_s)} from the start of the first process to "
        f"{_UNTIL.get(job.until, 'the end')} went.{_events(job)}",
        alt=f"One bar, the wall time of {time_in_one_unit(job.wall_s)}: mostly {words}.",
        table=table("The wall time of the job", ["Part", "Meaning", "Time", "Share"], rows, left={0, 1}),
        height=170,
    )  # fmt: skip
    return Section("job", title, figure)


def _amount(job: JobTime, name: str) -> list[Content]:
    seconds = job.parts_s.get(name)
    return [None, None] if seconds is None else [time_in_one_unit(seconds), percent(seconds / job.wall_s)]


def _events(job: JobTime) -> str:
    kinds = ((job.epochs, "epoch"), (job.evaluations, "evaluation"), (job.checkpoints, "checkpoint"))
    known = [count(number, word) for number, word in kinds if number]
    said = f" In it: {', '.join(known)}." if known else ""
    return said if job.timed else f"{said} What is not training is told by the flags of steps: it was not timed."


def notes(subject: Subject) -> Section | Absent:
    """The notes on missing measurements, with the reasons."""
    if not subject.report.notes:
        return Absent("Not measured, and why", "nothing is missing from this run")
    return Section("notes", "Not measured, and why", bullets(subject.report.notes))


def environment(subject: Subject) -> Section | Absent:
    """The command that was run, and its environment."""
    manifest = subject.report.manifest
    if manifest is None:
        return Absent("Environment", "the manifest of the run is missing")
    groups = [
        ("Run", {"run directory": " ".join(subject.run.paths), **_plain_fields(manifest)}),
        ("Versions", manifest.get("versions") or {}),
        ("Machine of rank 0", manifest.get("host") or {}),
        ("Model", manifest.get("model") or {}),
        ("Training", manifest.get("training") or {}),
    ]
    body = [
        tag("details", tag("summary", title), facts(list(_pairs(values))), open=not number)
        for number, (title, values) in enumerate(groups)
        if any(value is not None for value in values.values())
    ]
    return Section("environment", "Environment", body)


def _plain_fields(manifest: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "argv", "world_size", "working_directory", "job_id")
    return {name: manifest.get(name) for name in names}


def _pairs(values: dict[str, Any]) -> Iterator[tuple[str, Content]]:
    for name, value in values.items():
        if value is not None and value != "" and value != {}:
            yield str(name).replace("_", " "), _value(value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:,}"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def how_to_read() -> Section:
    words = [
        ("step", "from one update of the parameters to the next, of one rank"),
        ("class", "every nanosecond of a step belongs to exactly one, so they add up to the step"),
        ("steady steps", "those without warm-up, first batches of epochs, evaluation, checkpoints and compilation; "
                         "headline figures are means over them"),
        ("exposed, hidden", "communication that computing waited for, and communication beside computing; only the "
                            "exposed part is in the step"),
        ("wait, transfer", "until the last rank has come, nobody's data move: that is waiting for it, not the network"),
        ("at best", "bounds from the timeline; a real change gains less"),
        ("-", "not measured, which is not 0"),
        ("in the charts", "drag, pinch or turn the wheel to zoom, tap a name in a legend to hide it; every chart is "
                          "also a table below it"),
    ]  # fmt: skip
    return Section("reading", "How to read this page", facts([(word, text) for word, text in words]))


def files(subject: Subject) -> Html:
    """The commands that show more of the run."""
    return tag(
        "p", "Every step, collective and rank as tables: ",
        tag("code", f"ddlprof export {subject.run.typed} --format csv --out DIR"),
    )  # fmt: skip
