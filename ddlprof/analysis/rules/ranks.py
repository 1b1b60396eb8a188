"""Rules about ranks: they wait for others, always for the same one, for uneven input, a slow machine, or never."""

from __future__ import annotations

from itertools import pairwise

from ddlprof.analysis.late_rank import LateRank, part_words
from ddlprof.analysis.rules.compute import free_processors
from ddlprof.analysis.rules.experts import EVEN_EXPERTS, expert_imbalance, full_rank_is_late
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.line_advice import MAY_LOAD
from ddlprof.analysis.rules.pipeline import is_uneven
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.thresholds import (
    CAUSE_SHARE,
    FINDING_STEPS,
    LATE_EXPLAINED_SHARE,
    LATE_RANK_SHARE,
    LATE_RANK_STEPS,
    LATE_STRAGGLER_SHARE,
    NUMBERS_BYTES,
    SLOW_HOST_FACTOR,
    UNEVEN_CORRELATION,
    UNEVEN_SAMPLES_SHARE,
    WARN_SHARE,
)
from ddlprof.analysis.uncertainty import lowest_share
from ddlprof.base.units import count, percent, significant
from ddlprof.model.classes import TABLE
from ddlprof.model.issuers import OF_SCRIPT, PACKAGE

_OF_NUMBERS = ("allreduce", "broadcast", "reduce", "barrier")
"""The operations that metrics and decisions take."""
_FROM_ONE = ("broadcast", "scatter")
"""Those in which all ranks wait for one."""
_EACH_STEP = 0.9
"""Exchanges of all gradients in a mean step of all ranks, from which on hardly any step goes without."""
_GRADED_RANKS, _GRADE = 4, 0.15
"""At least so many ranks, each of which computes longer than the one before by this share of the mean: of fewer, the
others may differ by chance."""
_CALLED = {each.name: each.own_words for each in TABLE}


_BY_LENGTH = (
    "give all ranks {} of similar length in the same step: sort by length, cut into batches of all ranks, shuffle these"
)
_EVEN = {
    "samples": "batches of equal size on all ranks: a DistributedSampler, or sampling by length",
    "tokens": _BY_LENGTH.format("texts") + " (group_by_length=True in the Trainer), or pack texts to one length",
    "values": _BY_LENGTH.format("samples"),
}


def straggler(facts: Facts) -> Issue | None:
    """Finds one rank that the others wait for."""
    late = facts.late_rank
    of_stage = facts.stages is not None and late is not None and late.rank in facts.stages.ranks
    if late is None or (of_stage and late.cause == "compute" and is_uneven(facts)):
        return None  # `uneven_stages` says more
    if full_rank_is_late(facts) and expert_imbalance(facts) is not None:
        return None  # it says more
    share, waits = facts.summary.share("straggler"), facts.mean_s("straggler")
    evidence = f"{percent(late.last_share)} of the time that ranks wait is for it"
    more = more_work(facts)
    if more is not None and facts.amounts is not None:
        evidence += f"; it gets {significant(more)} times the others' {'tokens' if facts.amounts.is_text else 'values'}"
    if late.cause is not None and late.own_ns is not None and late.typical_ns is not None:
        own, typical = facts.scale.time(late.own_ns / 1e9), facts.scale.time(late.typical_ns / 1e9)
        evidence += f": its {_CALLED[late.cause]} is {own}, the typical rank's {typical}"
        evidence += f", most of it in {part_words(late.part)}" if late.part is not None else ""
    if waits is not None:
        evidence += f"; ranks wait {facts.scale.time(waits)} a step"
    sends = awaited_line(facts)
    evidence += f", for what is sent at {sends}" if sends is not None else ""
    if late.queued_share is not None:
        evidence += f"; it waits {percent(late.queued_share)} of its time for a processor"
    when = f" in {late.when}" if late.phases else ""
    gain_s = late.more_ns / 1e9 if late.more_ns is not None else waits  # the others wait as long as it takes longer
    divides = more is not None or sends is not None or full_rank_is_late(facts) or bool(_graded(facts, late))
    if waits is not None and gain_s is not None and divides:
        gain_s = min(gain_s, waits)  # what it has more is divided among all, and does not vanish
    return Issue(f"rank {late.rank} keeps the others waiting{when}", evidence, _late_advice(facts, sends),
                 facts.steady_steps, share, gain_s=gain_s, ranks=(late.rank,), about="straggler")  # fmt: skip


def help_late_rank(facts: Facts) -> str:
    """Advice for the late rank."""
    return _late_advice(facts, awaited_line(facts))


def _late_advice(facts: Facts, sends: str | None) -> str:
    """The same; `sends`: the awaited line."""
    late, uneven = facts.late_rank, uneven_input(facts)
    if uneven is not None:
        return uneven.next
    if late is None and facts.starved:
        return free_processors(facts)
    if late is None:
        return "give all ranks equal work: samples of one length, equal numbers of them"
    if full_rank_is_late(facts):
        return EVEN_EXPERTS
    if late.queued_share is None:
        return _help_by_cause(facts, late, sends)
    if late.cause is not None and facts.ranks_per_node == facts.world_size:  # other work would hold all ranks up alike
        return f"{_help_by_cause(facts, late, sends)}; it also waits for processors: {free_processors(facts)}"
    return f"look at what else runs on rank {late.rank}'s machine: {free_processors(facts)}"


def _help_by_cause(facts: Facts, late: LateRank, sends: str | None) -> str:
    if late.phases:
        return _help_in_phases(facts, late)
    if late.cause is None:
        return f"compare rank {late.rank} with the others: device clocks, neighbours on its machine, its samples"
    if sends is not None:
        return (
            f"let each rank make its own part of what rank {late.rank} makes for all (a loader with a "
            f"DistributedSampler on each; in accelerate dispatch_batches=False), or rank {late.rank} make it ahead, in "
            "workers of a loader"
        )
    if late.cause == "compute" and more_work(facts) is not None:
        return f"give rank {late.rank} no longer samples than the others: shuffle before they are divided, or by length"
    if graded := _graded(facts, late):
        return (
            f"divide the work evenly: no two ranks compute equally long ({facts.scale.time(graded[0])} to "
            f"{facts.scale.time(graded[-1])}); of a sequence under a causal mask an early and a late part to each rank"
            f"; then rank {late.rank}'s {_machine(facts)}"
        )
    causes = {
        "data": f"give rank {late.rank} the same storage and loader workers as the others",
        "compute": f"see what only rank {late.rank} computes{_in_part(late)}: hooks, logging, larger batches; then its "
        f"{_machine(facts)}",
        "h2d": f"look at rank {late.rank}'s copies: pinned memory, its slot on the bus",
        "other": f"move what only rank {late.rank} does{_at_line(facts, late)} (logging, checkpoints) out of the step",
    }
    return causes.get(late.cause, f"see why only rank {late.rank} has so much of it")


def awaited_line(facts: Facts) -> str | None:
    """The line of the script, or the package, at which the others wait for what the late rank sends them, such as the
    batches that it alone makes; None: they wait elsewhere too, it sends mere numbers, its own work is known to make
    none of it, or others have batches of their own."""
    late, waits, line = facts.late_rank, facts.mean_s("straggler"), facts.sources.main
    if late is None or late.cause not in ("other", "data") or late.others_load or not waits:
        return None
    if late.cause == "other" and line is not None and line.place.what not in MAY_LOAD:
        return None
    sent = [each for each in facts.issued.of(*OF_SCRIPT, PACKAGE) if each.op.startswith(_FROM_ONE)]
    if all(each.largest_bytes <= NUMBERS_BYTES for each in sent):
        return None
    if sum(each.exposed_s for each in sent) < CAUSE_SHARE * waits:
        return None
    return max(sent, key=lambda each: each.exposed_s).place.text


def more_work(facts: Facts) -> float | None:
    """How many times the others' work the late rank gets, if that is noticeably more; None: not, or not known."""
    if facts.late_rank is None or facts.amounts is None or facts.experts is not None:  # what experts get is routed
        return None
    times = facts.amounts.of_rank(facts.late_rank.rank)
    return times if times is not None and times >= 1 + UNEVEN_SAMPLES_SHARE else None


def _in_part(late: LateRank) -> str:
    return f" in {part_words(late.part)}" if late.part is not None else ""


def _graded(facts: Facts, late: LateRank) -> list[float]:
    """How long each rank computes, in seconds and sorted, if each computes noticeably longer than the one before, as
    where what is divided is not even; a sick device is one that differs from all others. Empty if not, or where waits
    for processors explain the late one."""
    times = sorted(each for of_node in facts.rank_compute_s.values() for each in of_node)
    least = _GRADE * sum(times) / max(1, len(times))
    even = len(times) < _GRADED_RANKS or any(b - a < least for a, b in pairwise(times))
    elsewhere = late.cause != "compute" or late.phases or late.queued_share is not None
    return [] if even or elsewhere else times


def _at_line(facts: Facts, late: LateRank) -> str:
    """Where the late rank is, if so much of `other` is at one line for certain that most of what it has more must be
    there, even if all that the others have is at that line, too."""
    line, samples = facts.sources.main, facts.sources.samples
    if line is None or late.own_ns is None or late.typical_ns is None:
        return ""
    all_ns = max((facts.summary.mean_ns("other") or 0.0) * facts.world_size, late.own_ns + late.typical_ns)
    surely_ns = lowest_share(line.share * samples, samples) * all_ns - (all_ns - late.own_ns)
    return f" at {line.place.text}" if surely_ns >= CAUSE_SHARE * (late.own_ns - late.typical_ns) else ""


def _machine(facts: Facts) -> str:
    what = "processors" if facts.device == "cpu" else "device"
    return f"{what} (clocks, temperature, other jobs)"


def _help_in_phases(facts: Facts, late: LateRank) -> str:
    """Advice for a rank that is late only for a time, which the script's own work rarely is."""
    if late.cause == "data":
        return f"see what held rank {late.rank}'s storage up in {late.when}: other readers, a cache that was cold"
    what = {"h2d": "copies", "other": "other work"}.get(late.cause or "", f"{_machine(facts)}")
    return f"see what happened to rank {late.rank} in {late.when}: its {what}, or work that only it did then"


def uneven_input(facts: Facts) -> Issue | None:
    """Finds ranks that by turns get more samples than others."""
    share, uneven = facts.summary.share("straggler"), facts.uneven
    if share is None or share < WARN_SHARE or uneven is None or facts.late_rank is not None:
        return None
    if uneven.samples_spread < UNEVEN_SAMPLES_SHARE or uneven.correlation < UNEVEN_CORRELATION:
        return None
    evidence = (
        f"the ranks' {uneven.unit} of a step differ by ±{percent(uneven.samples_spread)}, and who gets more takes "
        f"longer (correlation {uneven.correlation:.2f}); ranks wait {facts.mean('straggler')} a step"
    )
    if uneven.unit == "tokens" and facts.amounts is not None and facts.amounts.padding_share:
        evidence += f"; {percent(facts.amounts.padding_share)} of the tokens is padding"
    return Issue("ranks get uneven work, by turns", evidence, _EVEN[uneven.unit], uneven.steps, share,
                 gain_s=facts.mean_s("straggler"), about="straggler")  # fmt: skip


def uneven_steps(facts: Facts) -> Issue | None:
    """Finds ranks that run out of batches before the others, and wait for them under `join()`."""
    steps, job = facts.rank_steps, facts.job
    if len(steps) < 2 or job is None or facts.training.strategy not in ("ddp", "zero"):
        return None
    if (facts.exchanges or 0.0) < _EACH_STEP:
        return None  # a rank updates something that is its own
    most, fewest = max(steps, key=lambda rank: steps[rank]), min(steps, key=lambda rank: steps[rank])
    mean = sum(steps.values()) / len(steps)
    share = (job.share("steps") or 0.0) * (1 - mean / max(steps[most], 1))
    if share < WARN_SHARE:
        return None
    evidence = (
        f"rank {most} makes {count(steps[most], 'step')}, rank {fewest} {steps[fewest]:,}: who has no batches left "
        "takes part in the others' exchanges until they have none, either"
    )
    action = (
        "as many batches on all ranks: a DistributedSampler, or files divided by the numbers of their samples; or stop "
        "all where the first has none left: model.join(throw_on_early_termination=True)"
    )
    return Issue("ranks make different numbers of steps", evidence, action, facts.steady_steps, share, of="job",
                 ranks=(most,), about="straggler")  # fmt: skip


def slow_host(facts: Facts) -> Issue | None:
    """Finds a machine whose ranks all compute longer than any rank elsewhere."""
    share, nodes = facts.summary.share("straggler"), facts.rank_compute_s
    if share is None or share < WARN_SHARE or len(nodes) < 2 or min(map(len, nodes.values())) < 2:
        return None
    node = max(nodes, key=lambda number: min(nodes[number]))
    elsewhere = [seconds for number, ranks in nodes.items() if number != node for seconds in ranks]
    import statistics  # its import takes longer than all rules of most runs

    own, typical = statistics.mean(nodes[node]), statistics.median(elsewhere)
    if min(nodes[node]) <= max(elsewhere) or own < SLOW_HOST_FACTOR * typical:
        return None
    evidence = (
        f"each of its {len(nodes[node])} ranks computes longer than any rank elsewhere: "
        f"{facts.scale.time(own)} on average, the others {facts.scale.time(typical)}"
    )
    return Issue(f"all ranks of node {node} are slow together", evidence,
                 "see what else runs on that machine, and compare its clocks, cooling and settings with the others'",
                 facts.steady_steps, share, gain_s=min(facts.mean_s("straggler") or 0.0, own - typical),
                 about="straggler")  # fmt: skip


def ranks_apart(facts: Facts) -> Issue | None:
    """Finds ranks that the script has joined and that exchange no gradients: each trains a model of its own."""
    gradients, sent = facts.model.gradient_bytes or 0, facts.issued.kinds
    none = not sent and facts.summary.mean_ns("comm") == 0.0
    numbers = bool(sent) and all(
        each.largest_bytes <= NUMBERS_BYTES < gradients and each.op.startswith(_OF_NUMBERS) for each in sent
    )
    if facts.world_size < 2 or not facts.training.backend or not (none or numbers):
        return None
    what = "a few numbers and no gradients" if numbers else "nothing"
    steps = count(facts.steady_steps, "step")
    evidence = f"{facts.world_size} ranks exchange {what} in {steps}: each trains a model of its own"
    return Issue("the ranks train apart", evidence,
                 "out = model(x) with the model that DistributedDataParallel returned: model.module(x), or a method of "
                 "model.module, goes around it, and so does training under no_sync()",
                 facts.steady_steps, severity="critical")  # fmt: skip


RULES = (
    Rule("ranks_apart", "The ranks exchange no gradients", "no collective in the steady steps, or only reductions and "
         f"broadcasts of at most {NUMBERS_BYTES} bytes",
         "whoever adds up gradients sends more; where each rank means to train a model of its own, they need not be "
         "joined", FINDING_STEPS, "communication was not measured, or the script has joined no ranks "
         "(init_process_group)", ranks_apart, hides=True),
    Rule("straggler", "One rank keeps the others waiting", f"{percent(LATE_RANK_SHARE)} of the waited time is for one "
         f"rank, even at the lower end of the interval; ranks wait for {percent(LATE_STRAGGLER_SHARE)} of the step "
         f"({percent(WARN_SHARE)} of two ranks), and what it does longer explains {percent(LATE_EXPLAINED_SHARE)} of "
         f"that; its cause explains {percent(CAUSE_SHARE)} of what it does longer", "more than for all others "
         "together; one of two ranks is always last, by the jitter of both", LATE_RANK_STEPS,
         "when ranks arrive is not known", straggler),
    Rule("uneven_input", "Ranks get more samples than others, or longer ones, by turns",
         f"{percent(WARN_SHARE)} of the step spent waiting for later ranks, samples of a step (or their tokens, or the "
         f"size of their tensors) that differ by {percent(UNEVEN_SAMPLES_SHARE)}, and a correlation of "
         f"{UNEVEN_CORRELATION:g} of these with a rank's own time",
         "then the samples explain more than all else together", FINDING_STEPS,
         "the samples are not known, or one rank is always late", uneven_input),
    Rule("uneven_steps", "Ranks run out of batches before the others",
         f"{percent(WARN_SHARE)} of the job's wall time, by the steps of the rank with most beyond those of the mean",
         "less is not worth a day of anybody's work", FINDING_STEPS,
         "a rank has no record or did not end well, the strategy is neither DDP nor ZeRO, steps exchange no "
         "gradients, or the job's wall time is not known", uneven_steps),
    Rule("slow_host", "All ranks of one machine are slow together", f"{percent(WARN_SHARE)} of the step spent waiting "
         f"for later ranks; each rank of the machine slower than all others, by {percent(SLOW_HOST_FACTOR - 1)}",
         "a single slow rank is a matter of its device, several are one of their machine", FINDING_STEPS,
         "a machine holds a single rank, there is one machine, or ranks have different devices", slow_host),
)  # fmt: skip
