"""Rules about what stands still in the middle of steps: the garbage collector, and torch.compile that begins anew."""

from __future__ import annotations

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.line_advice import main_line, words_for_line
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.thresholds import (
    FINDING_STEPS,
    LINE_OF_STEP_SHARE,
    LOOP_SAMPLES,
    RECOMPILATIONS,
    WARN_SHARE,
)
from ddlprof.base.units import count, percent, significant
from ddlprof.model.source_locations import COLLECT


def collector(facts: Facts) -> Issue | None:
    """Finds a garbage collector that the steps wait for."""
    pauses, step = facts.collector, facts.mean_s("step")
    seconds = facts.collector_s
    if pauses is None or not step or not seconds or recompilation(facts) is not None:
        return None
    evidence = (
        f"it takes {facts.scale.time(seconds)} of a step, the longest pause {facts.scale.time(pauses.longest_s)}: "
        f"{significant(pauses.number, 2)} collections a step, {significant(pauses.full, 2)} of them of all objects"
    )
    line, action = main_line(facts), "gc.collect(); gc.freeze(); gc.disable() before the loop, and gc.collect() at "
    action += "checkpoints or in every 100th step"
    about = max(("compute", "other", "data"), key=lambda name: facts.mean_s(name) or 0.0)
    if line is not None and line.place.what == COLLECT:
        where, action = words_for_line(facts, line)
        evidence, about = f"{evidence}; {where}", "other"
    return Issue("the steps wait for the garbage collector", evidence, action, pauses.steps, seconds / step,
                 gain_s=seconds, about=about, part="collector")  # fmt: skip


def recompilation(facts: Facts) -> Issue | None:
    """Finds torch.compile at work in the steps after the warm-up, again and again."""
    again, step = facts.recompiled, facts.mean_s("step")
    if again is None or not step or again.number * again.steps < RECOMPILATIONS:
        return None
    share = again.seconds / max(step, again.seconds)
    if share < WARN_SHARE:
        return None
    evidence = f"{again.number * again.steps:.0f} compilations in {again.steps} steps after the warm-up, "
    evidence += f"{facts.scale.time(again.seconds)} in the mean step"
    evidence += f"; torch's reason: {again.reason}" if again.reason else ""
    sizes = "size mismatch" in again.reason or "stride mismatch" in again.reason or ".size()" in again.reason
    if sizes or not again.reason:
        action = "torch.compile(..., dynamic=True), or inputs padded to a few sizes (drop_last=True for the last batch)"
    else:
        action = (
            "what changes as a tensor or an argument that stays the same, not as a number, an attribute or an object "
            'of Python (TORCH_LOGS="recompiles" names the line)'
        )
    return Issue("torch.compile compiles again and again", evidence, action, again.steps, share,
                 gain_s=again.seconds if again.seconds < step else None, about="compute",
                 part="compilation", severity=None if again.seconds < step else "critical")  # fmt: skip


def graph_breaks(facts: Facts) -> Issue | None:
    """Finds graphs of torch.compile that are broken in each step."""
    broken = facts.broken_graphs
    if broken is None or broken.samples * broken.share < LOOP_SAMPLES or recompilation(facts) is not None:
        return None
    first = broken.places[0]
    evidence = (
        f"{count(len(broken.places), 'place')} in functions with {percent(broken.share)} of the stack samples of "
    )
    evidence += f"forward and loss; {first.place}: {first.reason}"
    scalar = "capture_scalar_outputs" in first.reason or ".item()" in first.reason
    action = (
        "torch.where and tensors in place of .item() and what depends on it, or "
        "torch._dynamo.config.capture_scalar_outputs = True"
        if scalar
        else "move what torch.compile does not know (print, logging, other libraries) out of the compiled function"
    )
    return Issue("torch.compile breaks its graph in each step", evidence,
                 f"{first.place}: {action}; torch.compile(..., fullgraph=True) names the next one", facts.steady_steps,
                 about="compute", severity="info")  # fmt: skip


RULES = (
    Rule("collector", "The steps wait for the garbage collector",
         f"{percent(LINE_OF_STEP_SHARE)} of the step, two pauses of up to half a second left out",
         "it is switched off in minutes; a few long pauses are those of a young process", FINDING_STEPS,
         "the collector paused in no steady step, or `recompilation` speaks, which makes many objects", collector),
    Rule("recompilation", "torch.compile compiles again after the warm-up",
         f"{percent(WARN_SHARE)} of the steps after the warm-up, and {RECOMPILATIONS} compilations in them",
         "a new size or two at the end of an epoch is no habit", FINDING_STEPS,
         "torch.compile is not used, or does not tell when it works", recompilation),
    Rule("graph_breaks", "torch.compile breaks its graph in each step",
         f"{LOOP_SAMPLES} stack samples of forward and loss in functions in which a graph was broken",
         "a function whose graph is whole has no frame; an info, since nobody measured what one graph would gain",
         FINDING_STEPS, "`recompilation` speaks", graph_breaks),
)  # fmt: skip
