"""The page of `ddlprof fuse`: for each part of the sweep what was decided and what it gained, then the trials."""

from __future__ import annotations

from ddlprof.base.units import count, scale_for, significant
from ddlprof.fusion.results import Measured, Prediction, Result, Trial, TrialGroup
from ddlprof.report.columns import aligned
from ddlprof.report.lines import text_of

_LABEL = 10


def as_page(result: Result) -> str:
    """For people."""
    number = sum(len(part.trials) for part in result.parts)
    where = f"{result.device}, {count(result.threads, 'thread')}" if result.device == "cpu" else result.device
    lines = [f"ddlprof  fuse · {result.model} · {count(number, 'trial')} · {result.optimizer} · {where}"]
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
    if part.training_s is not None:
        scale = scale_for(part.training_s)
        lines.append(_line("Training", f"{scale.time(part.training_s)} in all"))
    return lines + [_line("Note", note) for note in part.notes]


def _prediction(found: Prediction) -> list[str]:
    scale = scale_for(found.step_s)
    lines = [
        _line(
            "Predicted",
            f"a step of {count(found.models, 'model')} takes {scale.time(found.step_s)} as one, "
            f"{scale.time(found.models * found.alone_s)} one after another ({found.gain:.2f} times)",
        )
    ]
    if found.gain_beside is not None and found.one_thread_s is not None and found.beside is not None:
        beside = found.models * found.one_thread_s / found.beside
        lines.append(
            _line("", f"{scale.time(beside)} in {found.beside} processes at a time ({found.gain_beside:.2f} times)")
        )
    points = ", ".join(f"{models}: {scale.time(seconds)}" for models, seconds in found.points)
    lines.append(_line("", f"from steps of {points}; one by itself: {scale.time(found.alone_s)}"))
    return lines


def _measured(found: Measured) -> list[str]:
    scale = scale_for(found.fused_s)
    lines = [
        _line(
            "Measured",
            f"a step of {count(found.models, 'model')} took {scale.time(found.fused_s)} as one, "
            f"{scale.time(found.models * found.alone_s)} one after another ({found.gain:.2f} times)",
        )
    ]
    if found.gain_beside is None or found.beside_s is None or found.beside is None:
        return [*lines, _line("", "processes side by side were not measured")]
    beside = found.models * found.beside_s / found.beside
    said = f"{scale.time(beside)} in {found.beside} processes at a time ({found.gain_beside:.2f} times)"
    if found.start_s is not None:
        said += f", besides {found.start_s:.1f} s until they were ready"
    return [*lines, _line("", said)]


def _trials(result: Result) -> list[str]:
    names = list(result.trials[0].values)
    has_eval = any(trial.eval_loss is not None for trial in result.trials)
    head = ["TRIAL", *(name.upper() for name in names), "LOSS"]
    head += ["EVAL LOSS"] if has_eval else []
    head += ["METRIC"] if result.metric is not None else []
    rows = [head]
    for trial in result.trials:
        cells = [str(trial.number), *(str(trial.values[name]) for name in names), _figure(trial.loss, trial)]
        cells += [_figure(trial.eval_loss, trial)] if has_eval else []
        cells += [_figure(trial.metric, trial)] if result.metric is not None else []
        rows.append(cells)
    return aligned(rows, right=range(len(head)))


def _figure(value: float | None, trial: Trial) -> str:
    if value is None:
        return "diverged" if trial.diverged else ""
    return significant(value, 4)


def _line(label: str, text: str) -> str:
    return f"{label:{_LABEL}} {text}"
