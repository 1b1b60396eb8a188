"""The step of a job on one target, or on several side by side, as `ddlprof predict` shows it and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ddlprof.base.text import text_of
from ddlprof.base.units import Scale, count, percent, scale_for, significant
from ddlprof.recommender.compute.memory_fit import DOES_NOT_FIT, FITS
from ddlprof.recommender.estimate import CLASSES
from ddlprof.report.json_csv import json_text
from ddlprof.report.plans.data import asked_in_words, settings_in_words
from ddlprof.report.text import aligned, labelled

if TYPE_CHECKING:
    from ddlprof.recommender import Estimate, Target
    from ddlprof.recommender.compute.memory_fit import MemoryVerdict

_LABEL_WIDTH = 9
_labelled = partial(labelled, width=80, indent=_LABEL_WIDTH)
_MANY_MACHINES = 4
LEGEND = {"x": "extrapolated", "?": "fits perhaps in memory", "!": "does not fit in memory"}


@dataclass(frozen=True)
class Memory:
    """The memory of one GPU in GiB."""

    verdict: MemoryVerdict
    largest_batch: int | None = None
    """The largest batch that fits, where the one asked for may not; 0: not even one sample."""
    cures: tuple[str, ...] = ()
    """The options with each of which it would fit, where it may not."""

    @property
    def needed_gib(self) -> float:
        """The expected need."""
        return self.verdict.needed.gib

    @property
    def fits(self) -> bool:
        """Whether the step fits, at least perhaps."""
        return self.verdict.word != DOES_NOT_FIT

    @property
    def is_sure(self) -> bool:
        """Whether it fits in all likelihood."""
        return self.verdict.word == FITS


@dataclass(frozen=True)
class OnTarget:
    """The step on one target."""

    target: Target
    estimate: Estimate | None
    """None where it cannot be predicted; `problem` says why."""

    @property
    def machine(self) -> str:
        """The instance type, or outside of a cloud the model of the GPU."""
        return self.target.instance_type or self.target.gpu_model or ""


@dataclass(frozen=True)
class Prediction(OnTarget):
    """What was predicted for one target."""

    as_measured: Estimate | None = None
    """The step with the job's own settings, where others were asked for."""
    differences: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """The settings asked for, by name: the job's own value (None: not known), and the value asked for."""
    problem: str = ""
    memory: Memory | None = None
    """The memory of a GPU and the need of the step; None: not known."""
    tokens_per_sample: int | None = None
    """None: not known, or the samples are not text."""
    mfu: float | None = None
    """The model FLOPs utilization (MFU), the FLOPs of the model as a share of the GPUs' peak; None: not known."""

    @property
    def samples(self) -> int:
        """The samples of a GPU in one step."""
        return self.target.batch_per_gpu * (self.target.grad_accum or 1)

    @property
    def samples_per_s(self) -> float | None:
        """The samples a second of all GPUs."""
        return self.samples * sum(self.target.placement) / self.estimate.step_s if self.estimate else None

    @property
    def tokens_per_s(self) -> float | None:
        """The tokens a second of all GPUs."""
        if self.samples_per_s is None or self.tokens_per_sample is None:
            return None
        return self.samples_per_s * self.tokens_per_sample


def as_json(job: str, found: Sequence[Prediction]) -> str:
    """A JSON object with the fields of `Target` and `Estimate`, of several in a list in the order asked for."""
    return json_of_all(job, [_fields(one) for one in found])


def json_of_all(job: str, found: Sequence[Mapping[str, Any]]) -> str:
    """The JSON object of a job with the fields of a prediction, or with those of several in a list."""
    return json_text({"job": job, **(found[0] if len(found) == 1 else {"predictions": found})})


def _fields(one: Prediction) -> dict[str, Any]:
    """The target, its estimate and, where other settings were asked for, the one with the job's own."""
    fields: dict[str, Any] = {"target": asdict(one.target), "estimate": estimate_values(one.estimate)}
    fields |= {"samples_per_s": one.samples_per_s, "tokens_per_s": one.tokens_per_s, "mfu": one.mfu}
    if one.differences:
        fields["as_measured"] = estimate_values(one.as_measured)
    if one.memory:
        verdict = one.memory.verdict
        fields |= {"memory_gib_needed": one.memory.needed_gib, "fits_memory": one.memory.fits}
        fields |= {"memory_gib_low": verdict.needed.low_gib, "memory_gib_high": verdict.needed.high_gib}
        fields |= {"memory_verdict": verdict.word, "memory_fit_probability": verdict.probability}
        fields |= {"would_fit_with": one.memory.cures}
    if one.problem:
        fields["problem"] = one.problem
    return fields


def estimate_values(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {**estimate.values(), "phases": asdict(estimate.phases) if estimate.phases else None}


def render(job: str, found: Sequence[Prediction]) -> str:
    """The text with the predicted steps and what they are based on, ending with a line end."""
    return text_of(_of_one(job, found[0]) if len(found) == 1 else _side_by_side(job, found))


def _of_one(job: str, one: Prediction) -> list[str]:
    """The step and its classes."""
    target, estimate = one.target, one.estimate
    assert estimate is not None  # a single target that cannot be predicted is an error
    scale = scale_for(estimate.step_s)
    gpus = sum(target.placement)
    lines = [
        f"ddlprof  predict {job} · {placement_in_words(target.placement)} on {one.machine}"
        f" · {count(one.samples, 'sample')} per GPU, {one.samples * gpus} in all",
    ]
    if one.differences:
        lines += _labelled("Asked", settings_in_words(one.differences))
    lines.append(f"Step     {interval_in_words(estimate, scale)}")
    lines += [f"{'':{_LABEL_WIDTH}}{row}" for row in class_rows(estimate, scale)]
    if one.as_measured:
        ratio = one.as_measured.step_s / estimate.step_s
        before = f"{interval_in_words(one.as_measured, scale)}; {ratio:.2f} times the step asked for"
        lines += _labelled("As RUN", before)
    lines.append(f"{'Bound by':<{_LABEL_WIDTH}}{estimate.times.largest}")
    lines.append(f"{'Speed':<{_LABEL_WIDTH}}{_speed(one)}")
    if one.memory:
        lines += _labelled("Memory", _memory_in_words(one.memory))
    lines += _labelled("Rests on", *estimate.basis)
    return lines


def placement_in_words(placement: Sequence[int]) -> str:
    """`4,4`; `16 x 8` for many machines that are used alike."""
    if len(placement) > _MANY_MACHINES and len(set(placement)) == 1:
        return f"{len(placement)} x {placement[0]}"
    return ",".join(map(str, placement))


def _speed(one: Prediction) -> str:
    """`480 samples/s, 61,000 tokens/s, MFU 41 %`, as far as they are known."""
    parts = [f"{significant(one.samples_per_s)} samples/s"] if one.samples_per_s is not None else []
    parts += [f"{significant(one.tokens_per_s)} tokens/s"] if one.tokens_per_s is not None else []
    return ", ".join([*parts, *([f"MFU {percent(one.mfu)}"] if one.mfu is not None else [])])


def _memory_in_words(memory: Memory) -> str:
    """`12.3 GiB needed of the 14.7 GiB of a GPU that a process gets`; if that is not enough, the largest batch."""
    need, verdict = memory.verdict.needed, memory.verdict
    text = f"{need.gib:.1f} GiB needed of the {verdict.usable_gib:.1f} GiB of a GPU that a process gets"
    if memory.is_sure:
        return text
    would = f"; it would fit with {' or '.join(memory.cures)}" if memory.cures else ""
    if memory.fits:
        ends = f"80 % interval {need.low_gib:.1f} to {need.high_gib:.1f}"
        return f"{verdict.word} ({percent(verdict.probability)}), {text}, {ends}{would}"
    advice = f"the largest batch that fits is {memory.largest_batch}" if memory.largest_batch else "not one sample does"
    return f"{verdict.word}, {text}; {advice}{would}"


def interval_in_words(estimate: Estimate, scale: Scale) -> str:
    """`100 ms, 80 % interval 80 to 120 ms`."""
    return (
        f"{scale.time(estimate.step_s)}, 80 % interval {scale.number(estimate.low_s)} to {scale.time(estimate.high_s)}"
        + (" · extrapolated" if estimate.extrapolated else "")
    )


def class_rows(estimate: Estimate, scale: Scale) -> list[str]:
    """A line for each class, and below computation one for each phase where they are known."""
    rows = []
    for name in CLASSES:
        if name == "bubble" and not estimate.bubble_s:
            continue
        parts = [(name, estimate.times.of(name))]
        if name == "compute" and estimate.phases:
            parts += [(f"  {key.removesuffix('_s')}", seconds) for key, seconds in asdict(estimate.phases).items()]
        rows += [[part, scale.time(seconds), percent(seconds / estimate.step_s)] for part, seconds in parts]
    return aligned(rows, right={1, 2})


def _side_by_side(job: str, found: Sequence[Prediction]) -> list[str]:
    """A row for each target."""
    first = found[0]
    used = "".join(map(_flags, found))
    placements = list(dict.fromkeys(placement_in_words(one.target.placement) for one in found))
    per_gpu = f"{count(first.samples, 'sample')} per GPU"
    if len(placements) == 1:
        per_gpu += f", {first.samples * sum(first.target.placement)} in all"
    lines = [
        f"ddlprof  predict {job} · {count(len(found), 'target')}, {' or '.join(placements)} each · {per_gpu}",
        "",
        *_target_table(found),
        " ".join(
            ["SAMPLES/S: of all GPUs.", "; ".join(f"{flag} {LEGEND[flag]}" for flag in LEGEND if flag in used)]
        ).rstrip(),
        "",
    ]
    same = {name: pair for name, pair in first.differences.items() if name != "precision"}
    if same:
        lines += _labelled("Asked", f"{asked_in_words(same)}, in all rows")
    for number, one in enumerate(found, 1):
        if one.memory and not one.memory.is_sure:
            text = f"{number}: {_memory_in_words(one.memory)}"
            lines += _labelled("Memory", text)
        if one.problem:
            lines += _labelled("No step", f"{number}: {one.problem}")
    lines += _labelled("Rests on", *_basis(found))
    return lines


def _target_table(found: Sequence[Prediction]) -> list[str]:
    estimates = [one.estimate for one in found if one.estimate]
    scale = scale_for(min(estimate.step_s for estimate in estimates))
    compared = any(one.as_measured for one in found)
    has_tokens, has_mfu = (any(getattr(one, name) is not None for one in found) for name in ("tokens_per_s", "mfu"))
    heading = ["#", "MACHINE", "PRECISION", f"STEP {scale.unit} [80 %]", *(["AS RUN"] * compared), "SAMPLES/S"]
    heading += ["TOKENS/S"] * has_tokens + ["MFU"] * has_mfu
    numbers = range(4, len(heading))
    rows = [[*heading, "BOUND BY", ""]]
    for number, one in enumerate(found, 1):
        precision = one.target.precision or "as in RUN"
        start = [str(number), one.machine, precision]
        if one.estimate is None:
            rows.append([*start, "-", *("-" for _ in numbers), "-", ""])
            continue
        as_run = one.as_measured or (None if one.differences else one.estimate)
        before = [scale.number(as_run.step_s) if as_run else "-"] * compared
        rows.append(
            [*start, short_interval(one.estimate, scale), *before, _number(one.samples_per_s),
             *[_number(one.tokens_per_s)] * has_tokens, *["-" if one.mfu is None else percent(one.mfu)] * has_mfu,
             one.estimate.times.largest, _flags(one)]
        )  # fmt: skip
    return aligned(rows, right={0, *numbers})


def _number(value: float | None) -> str:
    return "-" if value is None else significant(value)


def short_interval(estimate: Estimate, scale: Scale) -> str:
    return f"{scale.number(estimate.step_s)} [{scale.number(estimate.low_s)}-{scale.number(estimate.high_s)}]"


def _flags(one: Prediction) -> str:
    extrapolated = one.estimate is not None and one.estimate.extrapolated
    too_large = one.memory is not None and not one.memory.fits
    perhaps = one.memory is not None and one.memory.fits and not one.memory.is_sure
    return "x" * extrapolated + "?" * perhaps + "!" * too_large


def _basis(found: Sequence[Prediction]) -> list[str]:
    """Every sentence on the basis once; one that does not hold for all rows begins with the numbers of its rows."""
    rows: dict[str, list[str]] = {}
    for number, one in enumerate(found, 1):
        for sentence in one.estimate.basis if one.estimate else ():
            rows.setdefault(sentence, []).append(str(number))
    predicted = sum(one.estimate is not None for one in found)
    return [
        sentence if len(numbers) == predicted else f"{','.join(numbers)}: {sentence}"
        for sentence, numbers in sorted(rows.items(), key=lambda item: len(item[1]) != predicted)
    ]
