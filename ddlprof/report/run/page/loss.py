"""The loss of the training over its updates, and the curve that foretells it."""

from __future__ import annotations

from ddlprof.analysis.loss_curve import LossCurve, loss_curve
from ddlprof.base.units import count, significant
from ddlprof.report.html.chart import chart
from ddlprof.report.html.element import Content
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.html.table import table
from ddlprof.report.run.loss_line import LossLine, loss_text
from ddlprof.report.run.page.subject import Subject

_TITLE = "Loss"
_DIGITS = 5


def over_updates(subject: Subject) -> Section | Absent:
    """The losses of the rank that the card has, and the curve if there is one."""
    line = subject.report.loss
    if line is None:
        return Absent(_TITLE, "none was noted: only one that backward is called on, in the host's memory, is read")
    found = loss_curve(next(rank.data.training_loss for rank in subject.ranks if rank.data.rank == line.rank))
    if not len(found.losses):
        return Absent(_TITLE, found.reason or "too few were noted")
    rows: list[list[Content]] = [
        [f"{update:,.0f}", _figure(loss), _figure(found.curve.at(update)) if found.curve else None]
        for update, loss in zip(found.updates.tolist(), found.losses.tolist(), strict=True)
    ]
    figure = chart(
        "loss", "lines", _data(found), caption=_caption(line),
        alt=f"The loss over {count(line.updates, 'update')}, from {_figure(found.losses[0])} to"
        f" {_figure(found.losses[-1])}.",
        table=table("Loss", ["Update", "Mean loss around it", "The curve"], rows),
    )  # fmt: skip
    return Section("loss", _TITLE, figure)


def _data(found: LossCurve) -> dict[str, object]:
    lines = [{"label": "loss", "points": _points(found.updates.tolist(), found.losses.tolist())}]
    if found.curve is not None:
        at = [found.curve.at(update) for update in found.updates.tolist()]
        lines.append({"label": "curve", "points": _points(found.updates.tolist(), at)})
    return {"unit": "", "along": "updates", "free": True, "lines": lines}


def _points(updates: list[float], losses: list[float]) -> list[list[float]]:
    """Figures as long as a reader needs them."""
    return [[round(update, 1), float(f"{loss:.{_DIGITS}g}")] for update, loss in zip(updates, losses, strict=True)]


def _figure(loss: float) -> str:
    return significant(loss, _DIGITS)


def _caption(line: LossLine) -> str:
    said = loss_text(line) or f"not predictable: {line.reason}"
    return f"Of rank {line.rank}, means of neighbouring updates: {said}."
