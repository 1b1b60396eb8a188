"""Rules about exposed communication: exchanging too often, in buckets of the wrong size, or too much."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from ddlprof.analysis.issued import Issued, by_line
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.rules.updates import SPARSE_EMBEDDING, may_be_sparse, unused_rows
from ddlprof.analysis.thresholds import (
    BUCKET_BYTES,
    FINDING_STEPS,
    HIDDEN_SHARE,
    HUGE_BUCKET_BYTES,
    LINE_OF_STEP_SHARE,
    SMALL_BUCKET_BYTES,
    SMALL_BUCKETS,
    UNUSED_LOOKS,
    WARN_SHARE,
)
from ddlprof.base.units import either, gib, percent, significant, size
from ddlprof.model.issuers import BUFFERS, FSDP, FSDP2, OF_SCRIPT, REDUCER, SHARDED_OPTIMIZER
from ddlprof.model.operators import ELEMENT_BYTES

_SEVERAL_EXCHANGES = 1.5
"""More exchanges of all gradients in a step are too many. DDP makes one, or one for each micro-batch; where it is not
known who issues collectives, buffers and metrics add a little."""
_ALL_GRADIENTS = 0.5
"""If small collectives carry this share of the gradients' bytes, they are the gradients and not, say, metrics."""

_LATENCY_BYTES = 2**16
"""Below, latency is most of what a message takes, on networks of 10 Gbit/s and more."""

_SHARDED = ("fsdp", "ddp+fsdp")
_PASSES_OF_UNIT = 3
"""FSDP gathers the parameters of a unit in forward and in backward, and then scatters its gradients."""
_TWICE = 1.5
"""So many gathers for each unit of FSDP: two, but for units that are kept after forward, as the last one may be."""
_UNUSED_SHARE = 0.5
"""From this share of the gradients on, rows of embeddings that nobody looks up are what the exchange is about."""
_IN_FLOAT32 = ("fp32", "tf32", "amp-bf16", "amp-fp16")
"""The precisions whose gradients have four bytes."""


def no_sync(facts: Facts) -> Issue | None:
    """Finds gradients that are exchanged after each micro-batch."""
    exposed = exposed_s(facts, facts.issued.gradients)
    if exposed is None or not exchanges_too_often(facts):
        return None
    times = facts.exchanges or 1.0
    evidence = f"gradients of {facts.training.micro_batches} micro-batches are exchanged {times:.0f} times a step; "
    evidence += f"computing waits {facts.scale.time(exposed)} for it"
    return Issue("gradients are exchanged too often", evidence, less_communication(facts), facts.steady_steps,
                 share_of_step(facts, exposed), gain_s=exposed * (1 - 1 / times), about="comm")  # fmt: skip


def bucket_size(facts: Facts) -> Issue | None:
    """Finds gradients sent in many small messages, or in one message when nothing is left to compute."""
    if facts.training.strategy in _SHARDED:
        return _small_units(facts)
    if facts.training.strategy == "zero":
        return _small_parameters(facts)
    exposed, sent = exposed_s(facts, facts.issued.of(REDUCER)), facts.reductions
    if exposed is None or sent is None or facts.training.strategy != "ddp" or not facts.model.gradient_bytes:
        return None
    exchanges = max(1.0, facts.exchanges or 1.0)
    enough = exchanges * ceil(facts.model.gradient_bytes / BUCKET_BYTES)
    small = sent.small_bytes >= _ALL_GRADIENTS * facts.model.gradient_bytes * exchanges
    if small and sent.number >= max(SMALL_BUCKETS, 4 * enough) and sent.shortest_s is not None:
        evidence = f"{sent.number:.0f} all-reduces a step for {gib(facts.model.gradient_bytes)} of gradients, at least "
        evidence += f"{1e6 * sent.shortest_s:.0f} µs each"
        action = "larger buckets: DistributedDataParallel(bucket_cap_mb=25), which is the default"
        return Issue("gradients are exchanged in many small messages", evidence, action, facts.steady_steps,
                     share_of_step(facts, exposed), gain_s=min(exposed, (sent.number - enough) * sent.shortest_s),
                     about="comm")  # fmt: skip
    backward = facts.mean_s("compute_backward")
    most_bytes = (1 - HIDDEN_SHARE) * facts.model.gradient_bytes
    one = sent.largest_bytes >= most_bytes and sent.largest_bytes > HUGE_BUCKET_BYTES
    if not one or backward is None or sent.exposed_s < (1 - HIDDEN_SHARE) * sent.duration_s:
        return None
    evidence = f"one message of {gib(sent.largest_bytes)} after backward, of {facts.scale.time(sent.duration_s)} "
    evidence += f"{facts.scale.time(sent.exposed_s)} exposed"
    return Issue("gradients are exchanged in one message at the end", evidence,
                 "smaller buckets, sent while backward goes on: DistributedDataParallel(bucket_cap_mb=25)",
                 facts.steady_steps, share_of_step(facts, exposed), about="comm",
                 gain_s=min(exposed, backward, sent.exposed_s) * (1 - BUCKET_BYTES / sent.largest_bytes))  # fmt: skip


def _small_units(facts: Facts) -> Issue | None:
    """The issue of FSDP that gathers and scatters small layers one by one.

    What it sends has to be sent in larger messages too, so that each message less saves its latency alone: at most what
    the shortest message of any kind takes.
    """
    sent = facts.issued.of(FSDP, FSDP2)
    exposed, number = exposed_s(facts, sent), sum(each.number for each in sent)
    fastest_s = min((each.fastest_s for each in facts.issued.kinds if each.fastest_s is not None), default=None)
    passes = _PASSES_OF_UNIT * (facts.training.micro_batches or 1)
    enough = passes * ceil(sum(each.bytes for each in sent) / passes / BUCKET_BYTES)
    small = sum(each.bytes for each in sent) < SMALL_BUCKET_BYTES * number
    if not sent or exposed is None or not small or number < max(SMALL_BUCKETS, 4 * enough) or fastest_s is None:
        return None
    evidence = f"{number:.0f} messages a step of {size(sum(each.bytes for each in sent) / number)}; any message takes "
    evidence += f"{1e6 * fastest_s:.0f} µs or more"
    of_blocks = "fully_shard(block)" if facts.issued.of(FSDP2) else "auto_wrap_policy=ModuleWrapPolicy({Block})"
    return Issue("parameters are gathered in many small messages", evidence,
                 f"larger units: {of_blocks} for blocks of layers, and several small ones together, in place of each "
                 "small layer by itself",
                 facts.steady_steps, share_of_step(facts, exposed), about="comm",
                 gain_s=min(exposed, (number - enough) * fastest_s))  # fmt: skip


def _small_parameters(facts: Facts) -> Issue | None:
    """The issue of a sharded optimizer that sends each parameter by itself after its update."""
    sent = facts.issued.of(SHARDED_OPTIMIZER)
    exposed, number, sizes = exposed_s(facts, sent), sum(each.number for each in sent), sum(each.bytes for each in sent)
    enough = max(facts.world_size, ceil(sizes / BUCKET_BYTES))
    small = sizes < SMALL_BUCKET_BYTES * number
    if exposed is None or not small or number < max(SMALL_BUCKETS, 4 * enough):
        return None
    evidence = f"the optimizer sends {number:.0f} messages a step of {size(sizes / number)}; computing waits "
    evidence += f"{facts.scale.time(exposed)} for them"
    return Issue("parameters are sent one by one after their update", evidence,
                 "ZeroRedundancyOptimizer(..., parameters_as_bucket_view=True): one message for each rank; or a plain "
                 "optimizer, where memory has room for its states", facts.steady_steps,
                 share_of_step(facts, exposed), about="comm",
                 gain_s=exposed * (1 - enough / number) if sizes < _LATENCY_BYTES * number else None)  # fmt: skip


def gradient_traffic(facts: Facts) -> Issue | None:
    """Finds ranks that exchange more bytes than the links carry while the ranks compute."""
    others = [each for each in facts.issued.kinds if each.place.what not in (BUFFERS, *OF_SCRIPT)]
    exposed = exposed_s(facts, others)
    if exposed is None or exchanges_too_often(facts) or bucket_size(facts) is not None:
        return None
    if _mostly_latency(facts):
        if (facts.training.unused_iterations or 0) >= UNUSED_LOOKS:
            return None  # one of the few messages is of that search
        lines = by_line(facts.issued.of(*OF_SCRIPT)).values()
        if max((facts.moving_of(line) + other_at(facts, line) for line in lines), default=0.0) > exposed:
            return None  # a line of the script takes longer, for pickling objects too, and has findings of its own
    evidence = f"computing waits {facts.scale.time(exposed)} a step for communication"
    comm = facts.comm
    if comm is not None:
        evidence += f" ({' and '.join(comm.ops[:2])}" if comm.ops else " ("
        evidence += f", {significant(comm.bus_gb_s, 2)} GB/s bus bandwidth)" if comm.bus_gb_s else ")"
    training = facts.training
    compressible = training.strategy == "ddp" and training.comm_hook == "" and training.precision in _IN_FLOAT32
    halves = compressible and facts.reductions is not None and _may_be_halved(facts)
    title = "exchanges take long, though they carry little"
    if not _mostly_latency(facts):
        title = "links carry less than the ranks exchange"
    gain, rows = exposed / 2 if halves else None, _unused_share(facts)
    again = _gathered_again(facts)
    if again is not None:
        gain = again.gain_s
        evidence += "; FSDP gathers all parameters in forward and again in backward"
    if rows is not None:
        gain = rows * exposed
        evidence += f"; {percent(rows)} of the gradients are rows of embeddings that no sample of the step looks up"
    return Issue(title, evidence, less_communication(facts), facts.steady_steps,
                 share_of_step(facts, exposed), gain_s=gain, about="comm")  # fmt: skip


class _GatheredAgain(NamedTuple):
    """Parameters that FSDP gathers for forward and anew for backward."""

    gain_s: float
    """The half of what computing waits for these gathers."""
    kept_bytes: float
    """What a rank holds more if it keeps them from forward to backward."""


def _gathered_again(facts: Facts) -> _GatheredAgain | None:
    """The parameters of FSDP, where it gathers each unit twice, half of which computing waits for noticeably, and
    memory holds all of them in between; None if not, or where frozen parameters hide it: these are gathered, and no
    gradients are scattered."""
    sent = facts.issued.of(FSDP, FSDP2)
    gathers = [each for each in sent if each.op.startswith("allgather")]
    units = sum(each.number for each in sent if each.op.startswith("reduce_scatter")) / max(facts.exchanges or 1.0, 1.0)
    passes = facts.training.micro_batches or 1
    twice = sum(each.number for each in gathers) >= _TWICE * passes * units > 0
    again = _GatheredAgain(facts.moving_of(gathers) / 2, sum(each.bytes for each in gathers) / 2 / passes)
    gains = again.gain_s >= LINE_OF_STEP_SHARE * (facts.mean_s("step") or 0.0)
    plain = facts.training.strategy == "fsdp" and facts.model.frozen is False and gains
    return again if plain and twice and _has_room(facts, again.kept_bytes) else None


def _unused_share(facts: Facts) -> float | None:
    """The share of what DDP exchanges that is of rows of embeddings which no sample of the step looks up; None where it
    is small or not known, or where the backend takes no sparse gradients. The others are then gathered from all ranks,
    in half of the bytes that adding up as many takes: this is none too much."""
    share = ELEMENT_BYTES["fp32"] * unused_rows(facts)[0] / (facts.model.gradient_bytes or float("inf"))
    plain = facts.training.strategy == "ddp" and not facts.training.comm_hook and may_be_sparse(facts)
    return share if plain and facts.training.precision in _IN_FLOAT32 and _UNUSED_SHARE <= share <= 1.0 else None


def exchanges_too_often(facts: Facts) -> bool:
    """Whether DDP or FSDP accumulates micro-batches and exchanges gradients in each of them."""
    sharded = facts.training.strategy in _SHARDED and bool(facts.issued.of(FSDP, FSDP2))
    sharded = sharded and _has_room(facts, facts.model.gradient_bytes or 0)
    accumulates = (facts.training.strategy == "ddp" or sharded) and (facts.training.micro_batches or 1) > 1
    return accumulates and (facts.exchanges or 0.0) > _SEVERAL_EXCHANGES


def _has_room(facts: Facts, wanted: float) -> bool:
    """Whether memory holds so many bytes more, such as the whole gradients, which FSDP keeps while it does not exchange
    them; True if not known."""
    free = facts.host.free_bytes
    if free is not None:
        free //= max(1, facts.ranks_per_node)
    if facts.device != "cpu":
        total, peak = facts.devices.memory_bytes, facts.devices.peak_bytes
        free = total - peak if total is not None and peak is not None else None
    return free is None or free >= wanted


def less_communication(facts: Facts) -> str:
    """Advice for exchanging less, or less often."""
    if exchanges_too_often(facts):
        times = f"gradients are exchanged {facts.exchanges:.0f} times a step"
        last = f"in all but the last of {facts.training.micro_batches} micro-batches"
        if facts.training.strategy == "ddp":
            return f"{times}: call the model under no_sync() {last}"
        kept = f"keeps {size(facts.model.gradient_bytes or 0)} of whole gradients in memory"
        how = "model.set_requires_gradient_sync(False)" if facts.issued.of(FSDP2) else "with model.no_sync():"
        return f"{times}: {how} {last} ({kept})"
    if again := _gathered_again(facts):
        how = "reshard_after_forward=False" if facts.issued.of(FSDP2) else "ShardingStrategy.SHARD_GRAD_OP"
        kept = size(again.kept_bytes)
        return f"{how} keeps the parameters from forward to backward, {kept} on each rank; or larger batches"
    if facts.training.strategy in ("fsdp", "zero"):
        return "larger batches, or faster links between the ranks"
    if facts.training.strategy != "ddp":
        return "larger batches, fewer and larger messages, or messages beside computing (async_op=True)"
    if _unused_share(facts) is not None:
        return f"{SPARSE_EMBEDDING}: the rows that a step looks up are exchanged, and no others"
    accumulates = (facts.training.micro_batches or 1) > 1
    hook = "fp16_compress_hook" if facts.device == "cpu" else "bf16_compress_hook"  # DDP refuses bf16 with gloo
    unknown = ", where there is no hook" if facts.training.comm_hook is None else ""
    return either(
        "larger batches",
        "more micro-batches between updates" if accumulates else "gradient accumulation with no_sync()",
        f"compressed gradients ({hook}){unknown}" if not facts.training.comm_hook and _may_be_halved(facts) else None,
    )


def _may_be_halved(facts: Facts) -> bool:
    """Whether messages of half as many bytes would take less: large ones, and on processors, which convert the numbers
    and add up two bytes more slowly than four, those that mostly wait for a network between machines."""
    network = facts.mean_s("network") or 0.0
    return not _mostly_latency(facts) and (facts.device != "cpu" or 2 * network >= (facts.moving_s or 0.0) > 0)


def _mostly_latency(facts: Facts) -> bool:
    """Whether even the largest message is so small that sending fewer bytes would not help."""
    sent = facts.reductions
    largest = sent.largest_bytes if sent is not None else facts.model.gradient_bytes
    return largest is not None and largest < SMALL_BUCKET_BYTES


def exposed_s(facts: Facts, issued: Iterable[Issued]) -> float | None:
    """The seconds of a step in which computing waits for these collectives to move data, or for any if it is not known
    who issues them; None if that is not worth a warning."""
    moving = facts.moving_of(issued) if facts.issued else facts.moving_s
    share = None if moving is None else share_of_step(facts, moving)
    return moving if facts.world_size > 1 and share is not None and share >= WARN_SHARE else None


def other_at(facts: Facts, issued: Iterable[Issued]) -> float:
    """The seconds of `other` at the lines of these collectives, as far as the stack samples tell."""
    texts = {each.place.text for each in issued}
    share = sum(each.share for each in facts.sources.shares if each.place.text in texts)
    return share * (facts.mean_s("other") or 0.0)


def share_of_step(facts: Facts, seconds: float) -> float | None:
    """Seconds as a share of the mean step."""
    step = facts.mean_s("step")
    return seconds / step if step else None


MOVING = f"{percent(WARN_SHARE)} of the step exposed, waits for later ranks left out"
WORTH = "less is not worth a day of anybody's work"

RULES = (
    Rule("no_sync", "Gradients are exchanged after every micro-batch", f"{MOVING}, and more than "
         f"{_SEVERAL_EXCHANGES:g} exchanges of all gradients in a step",
         "DDP and FSDP make one, or one for each micro-batch", FINDING_STEPS,
         "the strategy is another, a hook changes what is sent, the gradients' size is not known, or FSDP has no "
         "memory for whole gradients", no_sync),
    Rule("bucket_size", "Gradients go in many small messages, or in one at the end", f"{MOVING}; and at least "
         f"{SMALL_BUCKETS} small messages and four times those of DDP's default (with FSDP, of units of that size; "
         f"with `ZeroRedundancyOptimizer`, one for each rank), or with DDP one message of more than "
         f"{gib(HUGE_BUCKET_BYTES)} with less than {percent(HIDDEN_SHARE)} of it hidden",
         "small messages cost mostly latency; a single one begins when nothing is left to hide it behind",
         FINDING_STEPS, "something else than DDP, FSDP and that optimizer divides the work among ranks (DeepSpeed), or "
         "transfers are not told from waits", bucket_size),
    Rule("gradient_traffic", "Links carry less than the ranks exchange", MOVING, WORTH, FINDING_STEPS,
         "communication is not measured, `no_sync` or `bucket_size` speaks, `unused_search` does and messages are "
         "small, or lines of the script or broadcasts of buffers are what is waited for", gradient_traffic,
         comes_last=True),
)  # fmt: skip
