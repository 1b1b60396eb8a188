"""The results of `ddlprof fuse` as JSON, and its trials as a CSV file."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from typing import Any

from ddlprof.base.text import text_of
from ddlprof.base.units import Scale, count, scale_for, significant
from ddlprof.extensions.fusion.results import EqualityCheck, FusionPrediction, FusionTimes, Result, Trial, TrialGroup
from ddlprof.report.json_csv import cell, json_text
from ddlprof.report.table import Column, Table, fields

_NUMBER = Column[Trial]("trial", "number")
_FIGURES = Table[Trial](*fields("fused", "steps", "loss", "eval_loss", "metric", "diverged", "stopped"))
COLUMNS = (_NUMBER.name, *_FIGURES.heads)
"""The columns of the CSV file; after `trial` it has one more for each name of the sweep."""
_LABEL = 10


def as_json(result: Result) -> str:
    """The whole result as JSON; null means not measured."""
    return json_text(
        {
            "model": result.model,
            "optimizer": result.optimizer,
            "device": result.device,
            "threads": result.threads,
            "precision": result.precision,
            "metric": result.metric,
            "trained": result.trained,
            "parts": [_part_values(part) for part in result.parts],
            "trials": [_json_values(asdict(trial)) for trial in result.trials],
        }
    )


def as_csv(result: Result) -> str:
    """One row for each trial."""
    swept = [Column[Trial](str(cell(name)), partial(_swept, name)) for name in _names(result)]
    return Table(_NUMBER, *swept, *_FIGURES.columns).csv(result.trials)


def _swept(name: str, trial: Trial) -> Any:
    return trial.values.get(name)


def _names(result: Result) -> list[str]:
    """The names of the sweep. A trial lacks those that its optimizer does not have."""
    return list(dict.fromkeys(name for trial in result.trials for name in trial.values))


def _part_values(part: TrialGroup) -> dict[str, Any]:
    found = asdict(part)
    found["prediction"] = None if part.prediction is None else {**asdict(part.prediction), **_gains(part.prediction)}
    found["measured"] = None if part.measured is None else {**asdict(part.measured), **_gains(part.measured)}
    return found


def _gains(found: FusionPrediction | FusionTimes) -> dict[str, float | None]:
    return {"gain": found.gain, "gain_beside": found.gain_beside}


def _json_values(values: dict[str, Any]) -> dict[str, Any]:
    """The values with NaN and infinity, which JSON does not have, written as text."""
    return {
        name: _json_values(value) if isinstance(value, dict)
        else str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }  # fmt: skip


def as_page(result: Result) -> str:
    """The page, ending with a line end."""
    number = sum(len(part.trials) for part in result.parts)
    where = f"{result.device}, {count(result.threads, 'thread')}" if result.device == "cpu" else result.device
    precision = "" if result.precision == "fp32" else f" · {result.precision}"
    lines = [f"ddlprof  fuse · {result.model} · {count(number, 'trial')} · {result.optimizer} · {where}{precision}"]
    for part in result.parts:
        lines += ["", *_part(part, many=len(result.parts) > 1)]
    if result.trials:
        lines += ["", *_trials(result)]
    return text_of(lines)


def _part(part: TrialGroup, many: bool) -> list[str]:
    lines = []
    if many:
        common = ", ".join(f"{name} {value}" for name, value in part.values.items())
        lines.append(_line("Part", f"{common}: {count(len(part.trials), 'trial')}"))
    lines.append(_line("Verdict", f"{'fuse' if part.fuse else 'do not fuse'}: {part.reason}"))
    if part.fuse and part.at_once < len(part.trials):
        lines.append(_line("At once", f"{part.at_once} of {count(len(part.trials), 'trial')}"))
    if part.prediction is not None:
        lines += _prediction(part.prediction)
    if part.measured is not None:
        lines += _measured(part.measured)
    if part.equality is not None:
        lines.append(_line("Equal", _equality(part.equality, len(part.trials))))
    if part.training_s is not None:
        scale = scale_for(part.training_s)
        lines.append(_line("Training", f"{scale.time(part.training_s)} in all"))
    if part.peak_memory_bytes is not None:
        lines.append(_line("Memory", f"{part.peak_memory_bytes / 2**30:.2f} GiB of tensors at most"))
    return lines + [_line("Note", note) for note in part.notes]


def _equality(found: EqualityCheck, trials: int) -> str:
    if found.largest_difference is None:
        return "not compared: models draw random numbers (dropout), so trials agree with separate ones statistically"
    return (
        f"the first {count(found.steps, 'step')} of all {count(trials, 'trial')} are those of each by itself"
        f" (losses within {found.largest_difference:.1e})"
    )


def _prediction(found: FusionPrediction) -> list[str]:
    scale = scale_for(found.step_s)
    lines = [_line("Predicted", _as_one(found, "takes", found.step_s, scale))]
    if beside := _side_by_side(found, found.one_thread_s, scale):
        lines.append(_line("", beside))
    points = ", ".join(f"{models}: {scale.time(seconds)}" for models, seconds in found.points)
    lines.append(_line("", f"from steps of {points}; one by itself: {scale.time(found.alone_s)}"))
    return lines


def _measured(found: FusionTimes) -> list[str]:
    scale = scale_for(found.fused_s)
    lines = [_line("Measured", _as_one(found, "took", found.fused_s, scale))]
    beside = _side_by_side(found, found.beside_s, scale)
    if beside is None:
        return [*lines, _line("", "processes side by side were not measured")]
    if found.start_s is not None:
        beside += f", besides {found.start_s:.1f} s until they were ready"
    return [*lines, _line("", beside)]


def _as_one(found: FusionPrediction | FusionTimes, takes: str, step_s: float, scale: Scale) -> str:
    """A step of all models as one, against one model after another."""
    return (
        f"a step of {count(found.models, 'model')} {takes} {scale.time(step_s)} as one, "
        f"{scale.time(found.models * found.alone_s)} one after another ({found.gain:.2f} times)"
    )


def _side_by_side(found: FusionPrediction | FusionTimes, step_s: float | None, scale: Scale) -> str | None:
    """The same in processes side by side, one step of each of which takes `step_s`; None where that is not known."""
    if found.gain_beside is None or step_s is None or found.beside is None:
        return None
    all_s = found.models * step_s / found.beside
    return f"{scale.time(all_s)} in {found.beside} processes at a time ({found.gain_beside:.2f} times)"


def _trials(result: Result) -> list[str]:
    names, is_stopped = _names(result), any(trial.stopped for trial in result.trials)
    has_eval = any(trial.eval_loss is not None for trial in result.trials)
    columns = [Column[Trial]("TRIAL", "number")]
    columns += [Column(name.upper(), partial(_swept_text, name)) for name in names]
    columns += [Column("LOSS", lambda trial: _figure(trial.loss, trial))]
    columns += [Column("EVAL LOSS", lambda trial: _figure(trial.eval_loss, trial))] * has_eval
    columns += [Column("METRIC", lambda trial: _figure(trial.metric, trial))] * (result.metric is not None)
    columns += [Column("STEPS", "steps"), Column("STOPPED", "stopped")] * is_stopped
    return Table(*columns).lines(result.trials)


def _swept_text(name: str, trial: Trial) -> str:
    return str(trial.values.get(name, ""))


def _figure(value: float | None, trial: Trial) -> str:
    if value is None:
        return "diverged" if trial.diverged else ""
    return significant(value, 4)


def _line(label: str, text: str) -> str:
    return f"{label:{_LABEL}} {text}"
