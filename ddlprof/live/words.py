"""A snapshot in words: the phrases that all views share, and the status as plain lines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from ddlprof.analysis.hang_words import headline
from ddlprof.base.text import plain
from ddlprof.base.units import count, gib, listed, percent, ranges, scale_for, short_time, significant
from ddlprof.live.snapshot import GONE, SILENT, TRAINS, RankView, Snapshot
from ddlprof.model.classes import COMM_PARTS, TABLE, terms_of

_CAUSES = {each.name: each.own_words for each in TABLE}
_ENDED = {"ok": "ended", "stopped": "was measured as long as --stop-after says"}
QUIET_S = 10.0
"""Counters are written about once a second: an older last entry is worth a word."""


def per_second(rate: float, what: str) -> str:
    """`3.21 steps/s`."""
    return f"{significant(rate)} {what}/s"


def shares(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """The classes that add up to the step, by their share of it; parts in place of a class where all are known.

    A process that trains alone has no communication, and no line of it.
    """
    alone = ("comm", *COMM_PARTS) if snapshot.world_size == 1 else ()
    for name in terms_of(lambda name: snapshot.share(name) is not None):
        if (share := snapshot.share(name) or 0.0) or name not in alone:
            yield name, share


def breakdown(snapshot: Snapshot) -> str:
    """`52 ms = compute 81 % + data 6 % + ...`."""
    step = snapshot.times_s.get("step")
    if not step:
        return ""
    terms = [f"{name} {percent(share)}" for name, share in shares(snapshot) if share >= 0.0005]
    return f"{scale_for(step).time(step)} = {' + '.join(terms)}"


def progress(snapshot: Snapshot) -> str:
    """The progress of the training and its speed."""
    of = f" of {snapshot.total_steps:,}" if snapshot.total_steps is not None else ""
    parts = [f"step {snapshot.steps:,}{of}"]
    if snapshot.steps_per_s is not None:
        parts.append(per_second(snapshot.steps_per_s, "steps"))
    if snapshot.samples_per_s is not None:
        parts.append(per_second(snapshot.samples_per_s, "samples"))
    if snapshot.remaining_s is not None:
        parts.append(f"{short_time(snapshot.remaining_s)} left")
    epoch = snapshot.epoch
    if epoch is not None:
        parts.append(f"epoch {epoch.number}" + (f" ({percent(epoch.share)})" if epoch.share is not None else ""))
    return ", ".join(parts)


def verdict(snapshot: Snapshot) -> str:
    """`DATA-BOUND (42 %, on a shared machine)`; empty while there is no verdict."""
    found = snapshot.verdict
    if found is None:
        return ""
    told = found.headline is not None or found.severity == "unknown"
    details = [] if told or found.share is None else [percent(found.share)]
    details += ["on a shared machine"] if found.queued_share is not None else []
    return (found.headline or found.name) + (f" ({', '.join(details)})" if details else "")


def late(snapshot: Snapshot) -> str:
    """Which rank the others wait for; empty where none is known."""
    if snapshot.late_rank is None:
        return ""
    if snapshot.late_queued_share is not None:
        return f"rank {snapshot.late_rank} arrives last (waits for a processor)"
    cause = f" (more {_CAUSES[snapshot.late_cause]})" if snapshot.late_cause else ""
    return f"rank {snapshot.late_rank} arrives last{cause}"


def hang(snapshot: Snapshot) -> str:
    """Why no step ends; empty while the job does not hang."""
    found = snapshot.hang
    return f"for {short_time(found.for_s)}: {headline(found)}" if found is not None else ""


def sick(snapshot: Snapshot) -> str:
    """What is wrong with the machine or the device of the late rank; empty where nothing is known."""
    found = snapshot.sick
    if found is None:
        return ""
    whose = "device" if found.counter.of_device else "machine"
    rate = f"{significant(found.per_s)} {found.counter.words}" + ("" if found.counter.is_level else " a second")
    return f"{whose} of rank {found.rank} ({found.host}) is not well: {rate}"


def ranks(snapshot: Snapshot) -> str:
    """How many ranks train, and which do not."""
    here, world = len(snapshot.ranks), snapshot.world_size
    states = snapshot.states
    known = f"{here} of {count(world, 'rank')}" if here < world else count(world, "rank")
    parts = [known]
    for state, of in states.items():
        if state != TRAINS:
            who = "all" if len(of) == here else f"rank {ranges(of)}"
            parts.append(f"{who} {state_words(state)}")
    return ", ".join(parts)


def state_words(state: str) -> str:
    """The words for a rank in this state."""
    return {SILENT: "silent", GONE: "gone"}.get(state, _ENDED.get(state, f"ended: {state}"))


def memory(snapshot: Snapshot) -> str:
    """The memory of the rank that has the most; empty where none is known."""
    most = max((rank.memory_bytes for rank in snapshot.ranks if rank.memory_bytes is not None), default=None)
    return "" if most is None else f"memory {gib(most)}"


def last_entry(snapshot: Snapshot) -> str:
    """The time since anything was written, where it is long enough to be mentioned; else empty."""
    silent_s = snapshot.silent_s
    if silent_s is None or silent_s < QUIET_S or snapshot.ended:
        return ""
    return f"last entry {short_time(silent_s)} ago"


def waiting(snapshot: Snapshot) -> str:
    """The reason to wait, where there is no step yet or the files are not fully read; else empty."""
    if snapshot.read_share < 1:
        return f"reading, {percent(snapshot.read_share)}"
    return "" if snapshot.started else "waiting for the first step"


def status(snapshot: Snapshot) -> list[str]:
    """The whole status as parts of one line, the most important first."""
    parts = [waiting(snapshot), f"HANG {hang(snapshot)}" if snapshot.hang is not None else ""]
    if snapshot.started:
        parts += [progress(snapshot), breakdown(snapshot), verdict(snapshot), late(snapshot), sick(snapshot)]
    parts += [ranks(snapshot) if snapshot.ranks else "", memory(snapshot), last_entry(snapshot)]
    if snapshot.damaged:
        parts.append(count(snapshot.damaged, "damaged part"))
    if snapshot.unreadable:
        parts.append(f"{count(snapshot.unreadable, 'file')} cannot be read")
    return [part for part in parts if part]


def line(snapshot: Snapshot, now: datetime | None = None) -> str:
    """The status as one plain line, with the time of day if it is given."""
    time = f"{now:%H:%M:%S} " if now else ""
    return plain(f"ddlprof {time}{'; '.join(status(snapshot))}")


def ending(snapshot: Snapshot, typed: str) -> str:
    """The closing sentence of a run that will write nothing more."""
    steps = count(snapshot.steps, "step")
    states = snapshot.states
    if set(states) == {"ok"}:
        how = f"the run has ended after {steps}"
    elif GONE in states:
        how = f"the run was killed after {steps} (rank {ranges(states[GONE])} is gone without a last word)"
    else:
        said = listed([f"rank {ranges(of)} {state_words(state)}" for state, of in states.items()])
        how = f"the run has ended after {steps}: {said}"
    return f"{how}; next: ddlprof report {typed}"


def slowest_first(snapshot: Snapshot) -> list[RankView]:
    """The ranks in the order in which they deserve a look: ended or silent ones, the late one, long steps."""

    def key(rank: RankView) -> tuple[bool, bool, float, int]:
        own_s = sum(rank.means_s.get(name) or 0.0 for name in _CAUSES if _CAUSES[name])
        return rank.state == TRAINS, rank.rank != snapshot.late_rank, -own_s, rank.rank

    return sorted(snapshot.ranks, key=key)
