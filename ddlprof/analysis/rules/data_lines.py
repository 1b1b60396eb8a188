"""The rule about the line at which batches are made."""

from __future__ import annotations

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.input import comes_first, line_gain_s, made_at, workers_are_the_limit
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.thresholds import LINE_OF_STEP_SHARE, LINE_SAMPLES, LINE_SHARE, WARN_SHARE
from ddlprof.base.units import percent


def data_line(facts: Facts) -> Issue | None:
    """Finds the line at which most of the making of batches is spent."""
    share, line = facts.summary.share("data"), facts.data_lines.main
    if share is None or share < WARN_SHARE or line is None or not workers_are_the_limit(facts):
        return None
    gain_s = line_gain_s(facts)
    if gain_s is None:
        return None
    samples = facts.data_lines.inner.samples
    evidence = (
        f"the loop waits {facts.mean('data')} a step for its batches; {percent(line.share)} of what making them takes "
        f"is at {line.place.text} (of {samples} stack samples)"
    )
    return Issue("batches are made slowly at one line", evidence, made_at(line), samples, share, gain_s=gain_s,
                 about="data", severity=None if comes_first(facts) else "info")  # fmt: skip


RULES = (
    Rule("data_line", "One line takes most of what batches are made in",
         f"{percent(WARN_SHARE)} of the step spent waiting for data, and a line, the line that calls it or its "
         f"function with a third of the stack samples for certain; gains {percent(LINE_OF_STEP_SHARE)} of the step",
         "a line is changed in minutes; with more than a third no two other lines are as large; an info where "
         "it is not known what the line does and more workers help", LINE_SAMPLES,
         f"fewer than {LINE_SAMPLES} stack samples were taken, no line has {percent(LINE_SHARE)} for certain, or "
         "`hand_over`, `delivery_order` or `prefetch_factor` speaks", data_line),
)  # fmt: skip
