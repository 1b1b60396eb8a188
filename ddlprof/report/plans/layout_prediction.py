"""The step of a layout, or of several side by side, as `ddlprof predict --layout` shows it and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ddlprof.base.text import text_of
from ddlprof.base.units import Scale, count, percent, scale_for, scaled, significant
from ddlprof.recommender.compute.memory_fit import PERHAPS
from ddlprof.recommender.layout import DIMENSIONS
from ddlprof.report.plans.prediction import (
    LEGEND,
    OnTarget,
    class_rows,
    estimate_values,
    interval_in_words,
    json_of_all,
    placement_in_words,
    short_interval,
)
from ddlprof.report.text import aligned, labelled

if TYPE_CHECKING:
    from ddlprof.recommender import Estimate, Layout

_LABEL_WIDTH = 9
_labelled = partial(labelled, width=100, indent=_LABEL_WIDTH)


@dataclass(frozen=True)
class LayoutPrediction(OnTarget):
    """The predicted step of one layout on one machine."""

    tokens_per_sample: int
    value: str = ""
    """The value of the dimension that is varied; empty: none is."""
    problem: str = ""
    usable_gib: float | None = None
    """The part of a GPU's memory that a process gets (GiB); None: not known."""
    assumed: tuple[str, ...] = ()
    """What was assumed where nothing was asked for."""

    @property
    def layout(self) -> Layout:
        assert self.target.layout is not None
        return self.target.layout

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(self.target.placement)

    @property
    def data(self) -> int:
        """The data ranks."""
        return self.layout.data_ranks(self.gpus)

    @property
    def global_batch(self) -> int:
        """The sequences of one update."""
        return self.data * self.target.batch_per_gpu * (self.target.grad_accum or 1)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of all GPUs."""
        return self.global_batch * self.tokens_per_sample / self.estimate.step_s if self.estimate else None


def as_json(job: str, found: Sequence[LayoutPrediction]) -> str:
    """A JSON object with target and estimate, of several in a list in the order asked for."""
    return json_of_all(job, [_fields(one) for one in found])


def _fields(one: LayoutPrediction) -> dict[str, Any]:
    estimate, tokens = one.estimate, one.tokens_per_s
    shares = one.problem == ""
    fields: dict[str, Any] = {
        "target": asdict(one.target),
        "layout": one.layout.text(),
        "gpus": one.gpus,
        "data": one.data if shares else None,
        "global_batch": one.global_batch if shares else None,
        "estimate": estimate_values(estimate),
        "tokens_per_s": tokens,
        "tokens_per_s_per_gpu": None if tokens is None else tokens / one.gpus,
        "mfu": estimate.mfu if estimate else None,
        "memory_gib_needed": estimate.memory_gib if estimate else None,
        "fits_memory": estimate.fits_memory if estimate else None,
        "memory_verdict": estimate.memory_verdict if estimate else None,
        "memory_fit_probability": estimate.memory_fit_probability if estimate else None,
        "assumed": one.assumed,
    }
    if one.value:
        fields["value"] = one.value
    if one.problem:
        fields["problem"] = one.problem
    return fields


def render(job: str, found: Sequence[LayoutPrediction], vary: str | None = None) -> str:
    """The text with the steps and what they rest on, ending with a line end. `vary` is the dimension that is varied."""
    return text_of(_of_one(job, found[0]) if len(found) == 1 else _side_by_side(job, found, vary))


def _of_one(job: str, one: LayoutPrediction) -> list[str]:
    estimate = one.estimate
    assert estimate is not None  # a single layout that cannot be is an error
    scale = scale_for(estimate.step_s)
    lines = [
        f"ddlprof  predict {job} · {one.layout.text()} · {placement_in_words(one.target.placement)} on {one.machine}",
        *_labelled("Layout", _in_words(one)),
        *_labelled("Batch", _batch_in_words(one)),
        f"Step     {interval_in_words(estimate, scale)}",
        *(f"{'':{_LABEL_WIDTH}}{row}" for row in class_rows(estimate, scale)),
    ]
    if used := _dimensions(estimate, scale):
        lines += _labelled("Links", f"exposed communication: {used}")
    lines.append(f"{'Bound by':<{_LABEL_WIDTH}}{estimate.times.largest}")
    lines.append(f"{'Speed':<{_LABEL_WIDTH}}{_speed(one)}")
    if estimate.memory_gib is not None:
        lines += _labelled("Memory", _memory(one))
    return lines + _labelled("Rests on", *one.assumed, *estimate.basis)


def _in_words(one: LayoutPrediction) -> str:
    """`tensor 8 x pipeline 4 x data 16 = 512 GPUs; shard zero1, recompute selective`."""
    layout = one.layout
    degrees = [("tensor", layout.tensor), ("pipeline", layout.pipeline), ("context", layout.context)]
    parts = [f"{name} {degree}" for name, degree in degrees if degree > 1] + [f"data {one.data}"]
    text = f"{' x '.join(parts)} = {count(one.gpus, 'GPU')}"
    if layout.virtual > 1:
        text += f"; {layout.virtual} parts of the model on each stage"
    if layout.expert > 1:
        text += f"; experts over {layout.expert} ranks"
    text += f"; shard {layout.shard}, recompute {layout.recompute}"
    return text + (", no sequence parallelism" if layout.tensor > 1 and not layout.sequence_parallel else "")


def _batch_in_words(one: LayoutPrediction) -> str:
    each, accumulated = one.target.batch_per_gpu, one.target.grad_accum or 1
    tokens = scaled(one.global_batch * one.tokens_per_sample)
    return (
        f"{count(each, 'sequence')} of {one.tokens_per_sample:,} tokens"
        f" x {count(accumulated, 'micro-batch', 'micro-batches')} x {count(one.data, 'data rank')}"
        f" = {one.global_batch:,} sequences, {tokens} tokens"
    )


def _dimensions(estimate: Estimate, scale: Scale) -> str:
    """`tensor 1.2 s, data 0.1 s`: exposed communication by dimension."""
    spent = estimate.dimensions or {}
    return ", ".join(f"{name} {scale.time(spent[name])}" for name in DIMENSIONS if spent.get(name))


def _speed(one: LayoutPrediction) -> str:
    tokens, estimate = one.tokens_per_s or 0.0, one.estimate
    parts = [f"{significant(tokens)} tokens/s", f"{significant(tokens / one.gpus)} a GPU"]
    return ", ".join([*parts, *([f"MFU {percent(estimate.mfu)}"] if estimate and estimate.mfu is not None else [])])


def _memory(one: LayoutPrediction) -> str:
    estimate = one.estimate
    assert estimate is not None
    text = f"{estimate.memory_gib:.1f} GiB needed"
    if one.usable_gib is not None:
        text += f" of the {one.usable_gib:.1f} GiB of a GPU that a process gets"
    if estimate.memory_verdict == PERHAPS:
        return f"fits perhaps ({percent(estimate.memory_fit_probability or 0.0)}), {text}"
    return text if estimate.fits_memory is not False else f"does not fit, {text}"


def _side_by_side(job: str, found: Sequence[LayoutPrediction], vary: str | None) -> list[str]:
    gpus = " or ".join(f"{number:,}" for number in dict.fromkeys(one.gpus for one in found))
    batches = " or ".join(f"{number:,}" for number in dict.fromkeys(one.global_batch for one in found if one.estimate))
    what = count(len(found), "layout") if vary is None else f"{count(len(found), 'value')} of {vary}"
    used = "".join(map(_flags, found))
    legend = "; ".join(f"{flag} {LEGEND[flag]}" for flag in LEGEND if flag in used)
    lines = [
        f"ddlprof  predict {job} · {what} · {gpus} GPUs · {batches} sequences of"
        f" {found[0].tokens_per_sample:,} tokens an update",
        "",
        *_table(found, vary),
        f"DATA: data ranks. MB: sequences of a micro-batch. GA: micro-batches of a step. {legend}".rstrip(),
        "",
    ]
    for number, one in enumerate(found, 1):
        if one.problem:
            lines += _labelled("No step", f"{number}: {one.problem}")
    return lines + _labelled("Rests on", *_basis(found))


def _table(found: Sequence[LayoutPrediction], vary: str | None) -> list[str]:
    estimates = [one.estimate for one in found if one.estimate]
    scale = scale_for(min(estimate.step_s for estimate in estimates))
    several = len({one.machine for one in found}) > 1
    start = ["#", *[(vary or "").upper()] * bool(vary), *["MACHINE"] * several, "LAYOUT"]
    heading = [*start, "DATA", "MB", "GA", f"STEP {scale.unit} [80 %]", "TOKENS/S/GPU", "MFU", "BUBBLE", "EXPOSED"]
    rows = [[*heading, "GIB", ""]]
    for number, one in enumerate(found, 1):
        row = [str(number), *[one.value] * bool(vary), *[one.machine] * several, one.layout.text()]
        estimate = one.estimate
        if estimate is None:
            rows.append([*row, *["-"] * (len(heading) - len(row) + 1), ""])
            continue
        exposed_s = estimate.times.interconnect_s + estimate.times.network_s
        rows.append([
            *row, str(one.data), str(one.target.batch_per_gpu), str(one.target.grad_accum or 1),
            short_interval(estimate, scale),
            significant((one.tokens_per_s or 0.0) / one.gpus),
            "" if estimate.mfu is None else percent(estimate.mfu),
            percent(estimate.times.bubble_s / estimate.step_s), percent(exposed_s / estimate.step_s),
            "" if estimate.memory_gib is None else f"{estimate.memory_gib:.1f}", _flags(one),
        ])  # fmt: skip
    return aligned(rows, right={0, *range(len(start), len(heading) + 1)})


def _flags(one: LayoutPrediction) -> str:
    if one.estimate is None:
        return ""
    perhaps = one.estimate.memory_verdict == PERHAPS
    return "x" * one.estimate.extrapolated + "?" * perhaps + "!" * (one.estimate.fits_memory is False)


def _basis(found: Sequence[LayoutPrediction]) -> list[str]:
    """The sentences of all, each once."""
    return list(dict.fromkeys(text for one in found if one.estimate for text in (*one.assumed, *one.estimate.basis)))
