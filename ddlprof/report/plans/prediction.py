"""The step of a job on one target, as `ddlprof predict` shows it and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ddlprof.report.columns import aligned
from ddlprof.report.lines import json_text, text_of, wrapped
from ddlprof.report.units import percent, scale_for
from recommender.estimate import CLASSES

if TYPE_CHECKING:
    from recommender import Estimate, Target

_WIDTH, _LABEL_WIDTH = 80, 9


def as_json(job: str, target: Target, estimate: Estimate) -> str:
    """A JSON object with the fields of `Target` and `Estimate`."""
    value = {"job": job, "target": asdict(target), "estimate": estimate.values()}
    return json_text(value)


def render(job: str, target: Target, estimate: Estimate) -> str:
    """The predicted step, its classes, and what they rest on, ending with a line end."""
    scale = scale_for(estimate.step_s)
    gpus = sum(target.placement)
    batch = target.batch_per_gpu * (target.grad_accum or 1)
    lines = [
        f"ddlprof  predict {job} · {','.join(map(str, target.placement))} on {target.instance_type}"
        f" · {batch} samples per GPU, {batch * gpus} in all",
        f"Step     {scale.time(estimate.step_s)}, 80 % interval {scale.number(estimate.low_s)} to"
        f" {scale.time(estimate.high_s)}" + (" · extrapolated" if estimate.extrapolated else ""),
    ]
    times = [(name, estimate.times.of(name)) for name in CLASSES]
    rows = [[name, scale.time(time), percent(time / estimate.step_s)] for name, time in times]
    lines += [f"{'':{_LABEL_WIDTH}}{row}" for row in aligned(rows, right={1, 2})]
    lines.append(f"{'Bound by':<{_LABEL_WIDTH}}{estimate.times.largest}")
    for number, sentence in enumerate(estimate.basis):
        lines += wrapped(sentence, _WIDTH, f"{'' if number else 'Rests on':<{_LABEL_WIDTH}}")
    return text_of(lines)
