"""The steps of a job on several targets, as `ddlprof predict` shows them and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlprof.base.units import Scale, count, percent, scale_for, significant
from ddlprof.report.columns import aligned
from ddlprof.report.lines import json_text, text_of, wrapped
from ddlprof.report.plans.prediction import Prediction, fields_of, memory_in_words, placement_in_words
from ddlprof.report.plans.settings import asked_in_words

if TYPE_CHECKING:
    from recommender import Estimate

_WIDTH, _LABEL_WIDTH = 80, 9
_LEGEND = {"x": "extrapolated", "!": "does not fit in memory"}


def as_json(job: str, found: Sequence[Prediction]) -> str:
    """A JSON object with a list `predictions`, in the order asked for, of objects as for a single target."""
    return json_text({"job": job, "predictions": [fields_of(one) for one in found]})


def render(job: str, found: Sequence[Prediction]) -> str:
    """A row for each target, and what the rows rest on, ending with a line end."""
    first = found[0]
    used = "".join(map(_flags, found))
    placements = list(dict.fromkeys(placement_in_words(one.target.placement) for one in found))
    per_gpu = f"{count(first.samples, 'sample')} per GPU"
    if len(placements) == 1:
        per_gpu += f", {first.samples * sum(first.target.placement)} in all"
    lines = [
        f"ddlprof  predict {job} · {count(len(found), 'target')}, {' or '.join(placements)} each · {per_gpu}",
        "",
        *_table(found),
        " ".join(
            ["SAMPLES/S: of all GPUs.", "; ".join(f"{flag} {_LEGEND[flag]}" for flag in _LEGEND if flag in used)]
        ).rstrip(),
        "",
    ]
    same = {name: pair for name, pair in first.differences.items() if name != "precision"}
    if same:
        lines += wrapped(f"{asked_in_words(same)}, in all rows", _WIDTH, f"{'Asked':<{_LABEL_WIDTH}}")
    for number, one in enumerate(found, 1):
        if one.memory and not one.memory.fits:
            text = f"{number}: {memory_in_words(one.memory)}"
            lines += wrapped(text, _WIDTH, f"{'Memory':<{_LABEL_WIDTH}}")
        if one.problem:
            lines += wrapped(f"{number}: {one.problem}", _WIDTH, f"{'No step':<{_LABEL_WIDTH}}")
    for number, sentence in enumerate(_basis(found)):
        lines += wrapped(sentence, _WIDTH, f"{'' if number else 'Rests on':<{_LABEL_WIDTH}}")
    return text_of(lines)


def _table(found: Sequence[Prediction]) -> list[str]:
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
            [*start, _interval(one.estimate, scale), *before, _number(one.samples_per_s),
             *[_number(one.tokens_per_s)] * has_tokens, *["-" if one.mfu is None else percent(one.mfu)] * has_mfu,
             one.estimate.times.largest, _flags(one)]
        )  # fmt: skip
    return aligned(rows, right={0, *numbers})


def _number(value: float | None) -> str:
    return "-" if value is None else significant(value)


def _interval(estimate: Estimate, scale: Scale) -> str:
    return f"{scale.number(estimate.step_s)} [{scale.number(estimate.low_s)}-{scale.number(estimate.high_s)}]"


def _flags(one: Prediction) -> str:
    extrapolated = one.estimate is not None and one.estimate.extrapolated
    too_large = one.memory is not None and not one.memory.fits
    return "x" * extrapolated + "!" * too_large


def _basis(found: Sequence[Prediction]) -> list[str]:
    """Every sentence once; what does not hold for all rows, with their numbers."""
    rows: dict[str, list[str]] = {}
    for number, one in enumerate(found, 1):
        for sentence in one.estimate.basis if one.estimate else ():
            rows.setdefault(sentence, []).append(str(number))
    predicted = sum(one.estimate is not None for one in found)
    return [
        sentence if len(numbers) == predicted else f"{','.join(numbers)}: {sentence}"
        for sentence, numbers in sorted(rows.items(), key=lambda item: len(item[1]) != predicted)
    ]
