"""Why a job stands still: compares what its ranks say of themselves. Pure; `find_hang` is all of it.

A rank in a collective waits for the members of the group that have not issued it. Whoever waits for nobody is the
cause, and what it does is the reason. Where nobody is behind, ranks disagree, or the network is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ddlprof.analysis.disagreements import cycle, disagreement
from ddlprof.analysis.hang_facts import (
    BUSY,
    DISK,
    ENDED,
    FAILED,
    INPUT,
    KILLED,
    LATE,
    LOCK,
    MISSING,
    NETWORK,
    SILENT,
    STANDS,
    STOPPED,
    WORKER,
    CollectivePosition,
    Hang,
    HangRank,
    Standing,
    hang_of_kind,
)
from ddlprof.analysis.hang_waits import ReportedGroups, Waits, gave_up, lateness, reached, reported_groups, who_waits
from ddlprof.model.hang import (
    ABORTED,
    BUSY_BYTES_PER_S,
    BUSY_CORES,
    CHECKPOINT,
    COLLECTIVE,
    COMPILING,
    DATA,
    TRAINS,
    GroupState,
    Issued,
    RankState,
)
from ddlprof.model.hang import KILLED as WAS_KILLED
from ddlprof.model.records import GOOD_ENDS

if TYPE_CHECKING:
    from ddlprof.store import RunData

_INTERRUPT = "interrupt"
"""The status of a rank that somebody ended by hand."""
_MOST_RANKS = 1 << 17
"""More ranks than any job has; a damaged file may say otherwise."""
_PACE_NS = 30e9
"""A rank that stands still writes at least so often."""
_PATIENT = 10
"""A checkpoint may take so many times the limit before it counts: storage can be slow without a sign of life."""
_LOCKS = frozenset(("acquire", "join", "wait", "get", "put", "result", "__enter__", "wait_for"))
_LOST_PEER = ("clos", "reset", "timed out", "timeout", "peer", "broken pipe", "length", "wait timeout", "aborted")
"""Words of errors by which a collective ends where another rank has gone or disagrees."""
_OF_BACKENDS = ("gloo", "nccl", "distbackenderror", "distnetworkerror", "diststoreerror", "processgroup")
"""Words of errors of collectives, also of those that C++ waits for: DDP's are raised by `backward`."""
_MOST_HOSTS = 4


def hang_of(run: RunData) -> Hang | None:
    """Why the latest attempt of a run stood still; None where it did not."""
    if not run.standing:
        return None
    latest = [rank for rank in run.ranks if rank.attempt == run.standing[0].attempt]
    ended = {rank.rank: rank.end.status for rank in latest if rank.end is not None}
    found = find_hang(run.standing, ended, max((rank.header.world_size for rank in latest), default=1))
    if found is None:
        return None
    # A rank that was aborted or killed says nothing of its steps, and its file does.
    return replace(found, step=max(found.step, max((rank.step_count for rank in latest), default=0)))


def find_hang(states: Iterable[RankState], ended: Mapping[int, str], world_size: int) -> Hang | None:
    """The reason, or None where no rank stands still. `ended`: the status of ranks that wrote a last line."""
    states = list(states)
    known, resumed = {each.rank: each for each in states if not each.resumed}, [each for each in states if each.resumed]
    if not any(state.stands or state.status != TRAINS for state in known.values()):
        return None
    numbers = sorted({*range(min(world_size, _MOST_RANKS)), *known})
    said, reported = _together(known.values()), reported_groups(known.values())
    if all(state.status == TRAINS for state in known.values()) and any(
        said.goes_on(one) and _stood_together(one, known.values()) for one in resumed
    ):
        return None  # those that stood with it have not written since
    ranks = {number: _rank(number, known.get(number), ended, said) for number in numbers}
    stands = any(state.stands for state in known.values())
    waits, late = who_waits(ranks, reported)
    found = (
        disagreement(ranks, reported) or cycle(ranks, waits) or _roots(ranks, waits, late, reported) or _network(ranks)
    )
    found = found or _alone(ranks) or _killed(ranks) or _aborted(ranks)
    if found is None:
        return None
    return _with_lines(found, ranks, stands)


# -- the ranks --------------------------------------------------------------------------------------------------------


class _Said(NamedTuple):
    """What the states say together."""

    newest_ns: int
    """When the first rank gave up waiting; if none has, when the latest state was written."""
    is_over: bool
    """Whether a rank gave up waiting: what ends afterwards has not caused it."""
    asked_ns: int
    """For how long the ranks have been asked."""
    answers_ns: float
    """Within so long a rank that can write has answered."""
    kernel: dict[int, tuple[str, int]]
    """What the kernel said of the processes of other ranks, and when."""

    def stood(self, state: RankState) -> bool:
        """Whether a rank still stood there when the first one gave up."""
        return self.is_over and state.stands and not self.is_quiet(state)

    def goes_on(self, resumed: RankState) -> bool:
        """Whether a rank has gone on so lately that the others may not have said yet that they do, too."""
        return resumed.unix_ns > self.newest_ns - self.answers_ns

    def is_quiet(self, state: RankState) -> bool:
        """Whether a rank has not written for longer than one that can."""
        return self.newest_ns - state.unix_ns > 2 * self.answers_ns + _PACE_NS * state.stands


def _together(states: Collection[RankState]) -> _Said:
    over = min((each.unix_ns for each in states if _lost(each) and gave_up(each) and each.unix_ns), default=None)
    newest = max(each.unix_ns for each in states) if over is None else over
    first = min((each.first_unix_ns for each in states if each.first_unix_ns), default=newest)
    kernel: dict[int, tuple[str, int]] = {}
    for each in sorted(states, key=lambda state: state.unix_ns):
        for rank, word in each.peers.items():
            if rank.isdecimal() and len(rank) < 10 and kernel.get(int(rank), ("", 0))[0] != "stopped":
                kernel[int(rank)] = (word, each.unix_ns)  # one that was stopped is killed by its launcher later
    answers_ns = max(each.answers_s for each in states) * 1e9
    return _Said(newest, over is not None, newest - first, answers_ns, kernel)


def _stood_together(one: RankState, others: Iterable[RankState]) -> bool:
    """Whether a rank is in a group in which one of the others waits."""
    return any(
        one.rank in group.members for each in others if each.stands
        for group in each.groups if any(not issued.over for issued in group.recent)
    )  # fmt: skip


def _lost(state: RankState) -> bool:
    """Whether a rank was ended by an error of a collective that another rank did not come to, or has left."""
    text = state.error.lower()
    inside = state.error_in_collective or any(word in text for word in _OF_BACKENDS)
    inside = inside or (state.status == ABORTED and state.stands and _current(state) is not None)
    return inside and any(word in text for word in _LOST_PEER)


def _rank(number: int, state: RankState | None, ended: Mapping[int, str], said: _Said) -> Standing:
    if state is not None and state.status not in (TRAINS, "ok"):
        return Standing(number, FAILED, state, _latest(state) if _lost(state) else None, state.error)
    stood = state is not None and state.stands and (said.stood(state) or ended.get(number) == _INTERRUPT)
    if number in ended and not stood:
        left = state is not None and state.stands and ended[number] not in GOOD_ENDS
        place = _current(state) if left and state is not None else None  # the script has caught the error of a timeout
        failed = ended[number] == "exception" or place is not None
        return Standing(number, FAILED if failed else ENDED, state, place, ended[number])
    kernel, asked_at_ns = said.kernel.get(number, ("", 0))
    if state is not None and (asked_at_ns <= state.unix_ns or (stood and kernel != "stopped")):
        kernel = ""  # it has written since, or was ended when others had given up
    quiet = state is None or said.is_quiet(state)
    if kernel in ("stopped", "gone", "zombie") or (quiet and said.asked_ns > said.answers_ns):
        return Standing(number, STOPPED if kernel == "stopped" else SILENT, state, None, kernel)
    if state is None:
        return Standing(number, "", None, None)
    collective = _current(state)
    return Standing(number, COLLECTIVE if collective else state.doing, state, collective)


def _all(state: RankState) -> list[tuple[GroupState, Issued]]:
    return [(group, issued) for group in state.groups for issued in group.recent]


def _current(state: RankState) -> CollectivePosition | None:
    """The collective that a rank waits in: the oldest that is not over; None if it waits for none."""
    open_ones = [pair for pair in _all(state) if not pair[1].over]
    if state.doing != COLLECTIVE and not (state.device == "waits" and open_ones):
        return None
    return _place(*max(open_ones, key=lambda pair: pair[1].age_s)) if open_ones else _latest(state)


def _latest(state: RankState) -> CollectivePosition | None:
    """The last collective that a rank issued."""
    pairs = _all(state)
    return _place(*min(pairs, key=lambda pair: (pair[1].age_s, -pair[1].seq))) if pairs else None


def _place(group: GroupState, issued: Issued) -> CollectivePosition:
    return CollectivePosition(group.name, group.dimension, tuple(group.members), issued.seq, issued.op, issued.bytes)


# -- the reasons ------------------------------------------------------------------------------------------------------


def _roots(ranks: Mapping[int, Standing], waits: Waits, late: Collection[int], reported: ReportedGroups) -> Hang | None:
    """Ranks for which others wait and that wait for nobody themselves."""
    roots = sorted({each for of in reached(waits).values() for each in of if not waits.get(each)})
    if not roots:
        return None
    over = any(ranks[rank].does == FAILED and waits[rank] for rank in waits)
    reasons = {root: (LATE, "") if root in late else _reason(ranks[root], over) for root in roots}
    first = min(roots, key=lambda root: (_CERTAIN.index(reasons[root][0]), root))
    kind, detail = reasons[first]
    alike = {root for root in roots if reasons[root][0] == kind}
    waiting = [rank for rank in waits if waits[rank] and rank not in alike]
    direct = [rank for rank in waiting if not alike.isdisjoint(waits[rank])]
    nearest = min(direct, key=lambda rank: len(waits[rank]), default=None)  # others wait for those that wait, too
    place = None if nearest is None else ranks[nearest].collective
    if kind == LATE and place is not None:
        detail = lateness(place, ranks[first], [ranks[rank] for rank in direct], reported) or detail
    return hang_of_kind(kind, sorted(alike), waiting, place, ranks, detail)


_CERTAIN = (KILLED, FAILED, DISK, ENDED, STOPPED, SILENT, WORKER, INPUT, LOCK, MISSING, LATE, STANDS, BUSY, NETWORK)
"""Of several ranks behind, the one with the reason that comes first is named."""


def _reason(rank: Standing, over: bool = False) -> tuple[str, str]:
    """Why a rank does not come, and what tells. `over`: others have given up, so to be at work is no excuse."""
    state = rank.state
    if rank.does == FAILED:
        if state is not None and state.status == WAS_KILLED:
            return KILLED, ""
        if state is not None and state.status == ABORTED and state.error_in_collective:
            return FAILED, f"{rank.note}, inside a collective: most likely it gave another size than the others"
        return (DISK if "No space left" in rank.note else FAILED), rank.note
    if rank.does in (ENDED, STOPPED, SILENT) or state is None:
        return rank.does or SILENT, rank.note
    if state.full_disks:
        return DISK, ", ".join(state.full_disks)
    if _works(state) and (not over or _is_busy(state)):
        return (LATE if over else BUSY), ""
    dead = [f"{child.name} {child.pid} {child.ended}" for child in state.children if child.ended]
    if dead and (state.doing == DATA or state.thread.calls in _LOCKS):
        return WORKER, "; ".join(dead)
    if state.doing == DATA:
        return INPUT, ""
    held = next((thread for thread in state.threads if thread.place), None)
    if held is not None and (state.thread.calls in _LOCKS or "futex" in state.thread.waits_in):
        return LOCK, f"thread {held.name} is at {held.place}"
    return MISSING, ""


def _works(state: RankState) -> bool:
    """Whether a rank is at work, though no step of it ends."""
    return not state.stands or _is_busy(state)


def _is_busy(state: RankState) -> bool:
    """Whether what a rank does takes time: it computes, reads or writes, or its work gives no sign of life."""
    if state.doing in (CHECKPOINT, COMPILING) and state.quiet_s < _PATIENT * state.limit_s:
        return True
    if state.cores is None and state.thread.state == "R":
        return True
    return (state.cores or 0.0) >= BUSY_CORES or (state.io_bytes_per_s or 0.0) >= BUSY_BYTES_PER_S


def _network(ranks: Mapping[int, Standing]) -> Hang | None:
    """All are in the same collective, and it does not end."""
    inside: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for rank in ranks.values():
        if (place := rank.collective) is not None:
            inside.setdefault((place.group, place.members, place.seq), []).append(rank.number)
    for (_, members, _), of in inside.items():
        if len(of) >= 2 and len(of) == len(members):
            hosts = sorted({state.host for number in of if (state := ranks[number].state)})
            more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
            shown = ", ".join(hosts[:_MOST_HOSTS]) + more
            return hang_of_kind(NETWORK, of, of, ranks[of[0]].collective, ranks, shown)
    return None


def _alone(ranks: Mapping[int, Standing]) -> Hang | None:
    """Ranks that stand still, and it is not known that anybody waits for them."""
    still = [
        rank for rank in ranks.values()
        if rank.collective is None and rank.does not in (ENDED, FAILED) and rank.state and rank.state.stands
    ]  # fmt: skip
    over = any(rank.does == FAILED and rank.state is not None and _lost(rank.state) for rank in ranks.values())
    reasons = {rank.number: _reason(rank, over) for rank in still}
    for rank in still:
        kind, detail = reasons[rank.number]
        if kind == MISSING and not over:
            kind = BUSY if rank.state and rank.state.thread.calls == "sleep" else STANDS
        if kind != BUSY:
            alike = [other for other, reason in reasons.items() if reason[0] == reasons[rank.number][0]]
            return hang_of_kind(kind, alike, [], None, ranks, detail)
    return hang_of_kind(BUSY, [rank.number for rank in still], [], None, ranks, "") if still else None


def _killed(ranks: Mapping[int, Standing]) -> Hang | None:
    """Ranks that were killed, where nobody is known to have waited for them."""
    killed = [rank.number for rank in ranks.values() if rank.state is not None and rank.state.status == WAS_KILLED]
    return hang_of_kind(KILLED, killed, [], None, ranks, "") if killed else None


def _aborted(ranks: Mapping[int, Standing]) -> Hang | None:
    """Ranks whose process was aborted inside a collective, where the others failed elsewhere for want of them."""
    inside = [rank for rank in ranks.values() if rank.state is not None and rank.state.status == ABORTED]
    inside = [rank for rank in inside if rank.state is not None and rank.state.error_in_collective]
    if not inside:
        return None
    return hang_of_kind(FAILED, [rank.number for rank in inside], [], None, ranks, _reason(inside[0])[1])


# -- the result -------------------------------------------------------------------------------------------------------


def _with_lines(found: Hang, ranks: Mapping[int, Standing], stands: bool) -> Hang:
    lines = [_line(rank) for rank in ranks.values()]
    is_hang = found.is_hang and (stands or found.kind not in (FAILED, KILLED))
    return replace(found, lines=lines, is_hang=is_hang)


def _line(rank: Standing) -> HangRank:
    state = rank.state
    if state is None:
        return HangRank(rank.number, rank.does or SILENT, "", "", None, 0.0, rank.note)
    thread = state.thread
    note = rank.note or (f"device {state.device}" if state.device else "")
    return HangRank(
        rank.number, rank.does, thread.place, thread.calls, rank.collective, state.quiet_s, note, tuple(thread.stack)
    )
