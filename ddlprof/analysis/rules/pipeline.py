"""Rules about pipelines: the bubble of the schedule, and stages that take longer than others."""

from __future__ import annotations

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.stages import Stages
from ddlprof.analysis.thresholds import FINDING_STEPS, UNEVEN_STAGE_GAIN, UNEVEN_STAGE_SHARE, WARN_SHARE
from ddlprof.base.units import count, either, listed, percent


def bubble(facts: Facts) -> Issue | None:
    """Finds a schedule that makes ranks wait for their neighbours."""
    share, stages = facts.summary.share("bubble"), facts.stages
    if share is None or share < WARN_SHARE or stages is None:
        return None
    return Issue(f"the pipeline's bubble takes {facts.mean('bubble')} a step", why_bubble(facts), less_bubble(facts),
                 facts.steady_steps, share, gain_s=facts.mean_s("bubble"), about="bubble")  # fmt: skip


def why_bubble(facts: Facts) -> str:
    """How the bubble follows from the schedule."""
    stages = facts.stages
    if stages is None:
        return f"stages wait {facts.mean('bubble')} a step for their neighbours, as the schedule has it"
    schedule = f"{stages.schedule} over " if stages.schedule else ""
    places = len(stages.seconds)
    several = f" ({stages.virtual} on each of {count(places, 'rank')})" if stages.virtual > 1 else ""
    batches = count(stages.micro_batches, "micro-batch", "micro-batches")
    text = f"{schedule}{count(stages.stages, 'stage')}{several} with {batches}: stages wait "
    text += f"{facts.mean('bubble')} a step for their neighbours"
    if stages.bubble_share is not None:
        text += f"; of equal stages the schedule alone makes it {percent(stages.bubble_share)}"
    return text


def less_bubble(facts: Facts) -> str:
    """What makes the bubble smaller."""
    stages = facts.stages
    more = f" ({2 * stages.micro_batches} in place of {stages.micro_batches})" if stages else ""
    interleaved = stages is None or stages.virtual == 1
    return either(
        f"more and smaller micro-batches{more}",
        "several stages on each rank (ScheduleInterleaved1F1B)" if interleaved else None,
        "a schedule without a bubble (ScheduleZBVZeroBubble)",
    )


def uneven_stages(facts: Facts) -> Issue | None:
    """Finds a stage that takes longer than the others, which then wait for it."""
    stages, step_s = facts.stages, facts.mean_s("step")
    if stages is None or not step_s or not is_uneven(facts):
        return None
    share = stages.gain_s / step_s
    scale = facts.scale
    evidence = (
        f"{scale.time(stages.seconds[stages.slowest])} for the forward and backward of a micro-batch, the others "
        f"{scale.time(stages.others_s)}"
    )
    if stages.only:
        evidence += f"; only here: {listed(list(stages.only))}"
    return Issue(f"{slow_stage(stages)} {percent(stages.longer)} longer", evidence,
                 "move layers from there to other stages, until all take as long", facts.steady_steps, share,
                 gain_s=stages.gain_s, ranks=stages.ranks, about="straggler")  # fmt: skip


def is_uneven(facts: Facts) -> bool:
    """Whether the same stage takes longer than the others in every pipeline, and that matters."""
    stages, step_s = facts.stages, facts.mean_s("step")
    if stages is None or not step_s or stages.longer < UNEVEN_STAGE_SHARE:
        return False
    return stages.gain_s >= UNEVEN_STAGE_GAIN * step_s


def slow_stage(stages: Stages) -> str:
    """The stages that take longest, as the begin of a sentence."""
    if len(stages.own) == 1:
        last = " (the last)" if stages.own[0] == stages.stages - 1 else " (the first)" if not stages.own[0] else ""
        return f"stage {stages.own[0]}{last} takes"
    return f"stages {listed([str(each) for each in stages.own])} on one rank take"


RULES = (
    Rule("bubble", "The schedule of a pipeline makes stages wait", f"a bubble of {percent(WARN_SHARE)} of the step",
         "as for any stall", FINDING_STEPS, "the schedule is not known", bubble),
    Rule("uneven_stages", "A stage of a pipeline takes longer than the others",
         f"{percent(UNEVEN_STAGE_SHARE)} longer than the mean of the others, in every pipeline, and "
         f"{percent(UNEVEN_STAGE_GAIN)} of the step to gain from equal stages",
         "less cannot be helped by moving a layer", FINDING_STEPS,
         "the schedule or the computing of a stage is not known", uneven_stages),
)  # fmt: skip
