"""Why a job hangs, in words: one sentence, what to do, and what every rank does."""

from __future__ import annotations

from collections.abc import Sequence

from ddlprof.analysis import hang_facts as hangs
from ddlprof.analysis.hang_facts import CollectivePosition, Hang, HangRank
from ddlprof.base.units import ranges

_MOST_RANKS = 32
_LONGEST_NOTE = 80

_DOES = {
    "collective": "waits in",
    "data": "waits for a batch",
    "checkpoint": "saves a checkpoint",
    "evaluation": "evaluates",
    "compiling": "compiles",
    "script": "is in the script",
    "ended": "has ended",
    "failed": "failed",
    "stopped": "is stopped",
    "silent": "is silent",
    "": "has not answered",
}
_ADVICE = {
    hangs.MISSING: "find out what that line waits for; all ranks of a group have to issue its collectives",
    hangs.LATE: "that takes longer than the others wait: make it shorter, or give init_process_group a longer timeout",
    hangs.SKIPPED: "look for a branch around that collective which this rank did not take",
    hangs.EXTRA: "look for a branch around that collective which only this rank took",
    hangs.SHAPE: "give the tensor the same shape on all ranks: pad it, or drop the last, smaller batch",
    hangs.KIND: "look for a branch that the ranks take differently",
    hangs.ORDER: "issue the collectives of the groups in one order on all ranks",
    hangs.NETWORK: "no rank is late: look at the network between the machines and at their devices",
    hangs.WORKER: "look at the kernel's log for the out-of-memory killer; fewer workers or smaller batches need less",
    hangs.INPUT: "look at the storage, and at locks that the workers of the loader share",
    hangs.LOCK: "two threads wait for each other: take locks in one order, and hold none while waiting",
    hangs.STANDS: "find out what that line waits for",
    hangs.ENDED: "have all ranks make as many steps: drop what is left over of the data, or use DDP's join",
    hangs.FAILED: "the error of that rank comes first; those of the others follow from it",
    hangs.KILLED: "most often no memory was left, and the kernel's log (dmesg) names it: smaller batches, fewer loader "
    "workers, or more memory; else see who ended it",
    hangs.STOPPED: "the process was stopped (SIGSTOP, a debugger, a batch system); kill -CONT lets it go on",
    hangs.SILENT: "its process or machine is gone: look at that machine",
    hangs.DISK: "free space on that disk",
    hangs.BUSY: "it is at work: no hang",
}


def headline(found: Hang) -> str:
    """The finding in one sentence."""
    one = len(found.ranks) == 1
    who = f"{'rank' if one else 'ranks'} {ranges(found.ranks)}"
    be, has, waits = ("is", "has", "waits") if one else ("are", "have", "wait")
    at = f" at {found.place}" if found.place else ""
    others = (
        f"; {_ranks(found.waiting)} in {place_text(found.collective)}" if found.waiting and found.collective else ""
    )
    detail = f" ({found.detail})" if found.detail else ""
    where = place_text(found.collective)
    words = {
        hangs.LATE: f"{who} {'was' if one else 'were'} too late{detail}{at}{others}",
        hangs.SKIPPED: f"{who} left out {where} and issued {found.detail} instead{at}",
        hangs.EXTRA: f"{who} issued {found.detail} more than the others, before {where}{at}",
        hangs.SHAPE: f"{who} gave another size to {where}{detail}{at}",
        hangs.KIND: f"{who} issued {found.detail} where the others issued {where}{at}",
        hangs.ORDER: f"{who} issued collectives in another order than the others{detail}{at}{others}",
        hangs.NETWORK: f"{who} {waits} in {where}, none is late, and it does not end: network or machine{detail}",
        hangs.WORKER: f"{who} {waits} for a batch of a worker that has ended{detail}{at}{others}",
        hangs.INPUT: f"{who} {waits} for a batch{at}{others}",
        hangs.LOCK: f"{who} {waits} for a lock{at}{detail}{others}",
        hangs.STANDS: f"{who} {'stands' if one else 'stand'} still{at}",
        hangs.ENDED: f"{who} {has} ended{others}",
        hangs.FAILED: f"{who} failed{at}{detail}{others}",
        hangs.KILLED: f"{who} {'was' if one else 'were'} killed (SIGKILL){others}",
        hangs.STOPPED: f"{who} {be} stopped{at}{others}",
        hangs.SILENT: f"{who} no longer {'writes' if one else 'write'}{detail}{others}",
        hangs.DISK: f"{who} {has} no space left on a disk{detail}{at}{others}",
        hangs.BUSY: f"{who} {be} at work{at}{others}",
    }
    return words.get(found.kind, f"{who} {be} missing{at}{others}")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranges(ranks)} waits" if len(ranks) == 1 else f"ranks {ranges(ranks)} wait"


def place_text(place: CollectivePosition | None) -> str:
    """`allreduce #41 of group 0 (data, 16,640 bytes)`."""
    if place is None:
        return "a collective"
    inside = ", ".join(filter(None, (place.dimension, f"{place.bytes:,} bytes")))
    return f"{place.op} #{place.seq} of group {place.group} ({inside})"


def label(found: Hang) -> str:
    """The word for the finding: a job that only waits, or failed at once, does not hang."""
    return "Hang" if found.is_hang else "Waiting" if found.kind == hangs.BUSY else "Failed"


def advice(found: Hang) -> str:
    """What to do about it."""
    return _ADVICE.get(found.kind, "")


def does(line: HangRank) -> str:
    if line.collective is not None and line.does == "collective":
        return f"waits in {place_text(line.collective)}"
    note = f" ({line.note[:_LONGEST_NOTE]})" if line.note else ""
    return f"{_DOES.get(line.does, line.does)}{note}"


def most_telling(found: Hang) -> list[HangRank]:
    """The ranks to show, the cause first; of many alike a few."""
    first = [line for line in found.lines if line.rank in found.ranks]
    return (first + [line for line in found.lines if line.rank not in found.ranks])[:_MOST_RANKS]
